"""How a server begins and ends: its release, signals, ports, systemd, and why it could not start."""
