"""Messages that are sent only when their producer says so: open transactions, their ends, their checks."""
