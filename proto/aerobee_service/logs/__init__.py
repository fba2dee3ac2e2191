"""Logs: one line for each event, in one form for all programs."""
