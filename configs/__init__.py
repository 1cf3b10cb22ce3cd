"""Configurations: each states the row of the paper that it stands for."""
