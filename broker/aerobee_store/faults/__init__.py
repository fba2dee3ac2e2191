"""What can go wrong with a store, what becomes of it, and where a test may make it happen."""
