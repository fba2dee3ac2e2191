"""The two ends of a connection: who dials and who listens."""
