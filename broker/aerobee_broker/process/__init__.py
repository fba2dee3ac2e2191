"""What the broker has of its process: threads, descriptors, a folder of its own, and notes of how it ended."""
