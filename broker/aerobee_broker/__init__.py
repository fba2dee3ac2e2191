"""The broker: requests bound to the store. Its rooms and their arrows are in `tests/rooms.py`."""
