"""Which old files go, when, and in what order."""
