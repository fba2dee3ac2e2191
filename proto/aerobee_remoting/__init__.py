"""Remoting: sockets on one side, commands on the other. See `docs/architecture.md`."""
