"""A run with files: configuration, plan, loop, checkpoints, records."""
