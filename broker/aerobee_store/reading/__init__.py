"""From a queue and an offset, or a key, to records."""
