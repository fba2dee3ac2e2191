"""Requests to nameservers and brokers: connections, routes, signatures, pauses between tries."""
