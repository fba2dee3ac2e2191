"""What every command shares: options, session, tables, progress, errors and exit codes."""
