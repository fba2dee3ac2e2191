"""Records as they lie in a file, one by one and as columns, without knowing whose file it is."""
