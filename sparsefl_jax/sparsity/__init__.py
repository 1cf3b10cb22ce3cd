"""Masks and the rules that place, recount and move them."""
