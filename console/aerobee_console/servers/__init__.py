"""The server programs, started and stopped from the command line."""
