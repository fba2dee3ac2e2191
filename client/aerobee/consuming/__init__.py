"""From queues to a reader's loop or handler: pulls, shares, locks, offsets, retries."""
