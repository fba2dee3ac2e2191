"""Coverage-guided fuzzing: targets, what is known to reach far into them, and a ledger of what was run."""
