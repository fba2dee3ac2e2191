"""The one door to the disk: files, maps, locks, room, and what of them may be open at a time."""
