"""From properties to what is stored, and from what is stored to whoever waits for it."""
