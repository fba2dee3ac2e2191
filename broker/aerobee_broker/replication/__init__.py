"""Copies of the log on other machines: a master gives it, slaves follow, and sends are promised what they have."""
