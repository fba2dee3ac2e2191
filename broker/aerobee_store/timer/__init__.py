"""The files of messages that wait for a moment, and whether they hold together."""
