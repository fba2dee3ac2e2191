"""Administration: topics, groups, brokers, offsets, and messages looked up by key."""
