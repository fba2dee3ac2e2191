"""`aerobee access ...`: who may come in, and how one is known."""
