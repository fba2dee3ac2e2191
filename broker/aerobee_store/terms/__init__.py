"""What is asked of a store and answered by it, as plain values."""
