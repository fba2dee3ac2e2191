"""What an operator wrote: read, checked once, changed in place, followed while the program runs."""
