"""A store folder as it lies there, without a running broker: what is in it, and whether it holds together."""
