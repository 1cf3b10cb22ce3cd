"""Runs that write files: configuration, plan, loop, checkpoints, records."""
