"""Configurations: each docstring states the rows of a paper that it reproduces."""
