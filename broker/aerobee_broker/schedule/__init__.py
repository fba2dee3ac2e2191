"""Messages that wait for their time, by delay level and by timer, and their delivery."""
