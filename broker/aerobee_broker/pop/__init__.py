"""Consumption by POP: the broker hands messages out, waits for their acknowledgement, and hands them out again."""
