"""What the client is asked and answers with, as plain values: settings, queues, places, figures."""
