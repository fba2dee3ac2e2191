"""The queues: which record is the next of a topic's queue."""
