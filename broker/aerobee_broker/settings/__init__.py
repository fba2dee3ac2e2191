"""What an operator can set, and the small files in which the tables of the broker are kept."""
