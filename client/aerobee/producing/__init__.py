"""From a call to a stored message: batches, queues, tries, transactions, replies."""
