"""The native engine: whether it is there and wanted, and what it can do."""
