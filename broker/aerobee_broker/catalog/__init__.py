"""What outlives the process beside the messages: topics, groups, and how far each group has read."""
