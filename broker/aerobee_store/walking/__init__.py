"""Going through the log from record to record, and whether the other files agree with what is found."""
