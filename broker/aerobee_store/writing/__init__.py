"""From messages to the log, and from the log to queues and index."""
