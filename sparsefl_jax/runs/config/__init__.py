"""Configurations: their fields, checks, and the objects built from them."""
