"""What an open client is made of: its parts, its blocking twins, what brokers ask of it, and the traces it keeps."""
