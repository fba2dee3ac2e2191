"""Messages in and out from the command line: send, consume, tail, query."""
