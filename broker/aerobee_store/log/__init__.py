"""The commit log: all messages of all topics, one after the other, and how far it is on disk."""
