"""The door to store folders: the store looks into them, without a running broker; here it is asked."""
