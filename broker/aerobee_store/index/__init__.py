"""The key index: which records carry a key."""
