"""The store: files <-> records, synchronous. Its rooms and their arrows are in `tests/rooms.py`."""
