"""`aerobee doctor`: the faults that are most frequent at the beginning, and how to mend each."""
