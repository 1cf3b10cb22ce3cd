"""Shared vocabulary: types, the signature of a method, keys, validation."""
