"""How the work of one event loop is shared out: tasks, turns, slices."""
