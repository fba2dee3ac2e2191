"""TLS of a server and of what it dials: contexts made of files, and made again when the files change."""
