"""Reads that would wait for the disk: who waits for which, in what order they are done, and by which threads."""
