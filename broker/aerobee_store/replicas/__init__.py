"""The bytes of the log as they lie there, given to replicas and taken from the store of which this is one."""
