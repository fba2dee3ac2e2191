"""The command line: it asks through the client and shows; what is right or wrong is decided elsewhere."""
