"""Bringing log, queues and index back to one truth after any kind of stop."""
