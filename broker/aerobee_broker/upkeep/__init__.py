"""What the broker does by itself at intervals: old files, lost clients, scrubbing, a look at the disk."""
