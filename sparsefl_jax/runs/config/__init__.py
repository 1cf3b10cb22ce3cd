"""A configuration and the objects that it becomes."""
