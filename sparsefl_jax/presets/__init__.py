"""What the configurations of one paper share; a file in `configs/` imports it."""
