"""The HTTP port for operators: what is served at it, and how."""
