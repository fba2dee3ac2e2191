"""What is known of a peer: what went wrong with it, and how much memory is kept for it."""
