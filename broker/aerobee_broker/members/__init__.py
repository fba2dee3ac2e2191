"""Who is connected: producers and consumers by group, their subscriptions and locks, and who hears of changes."""
