"""What operators look at: metrics, health, and the table of the broker's present state."""
