"""What every long-lived program of ours needs and is not about sockets: settings, logs, signals, ports, turns."""
