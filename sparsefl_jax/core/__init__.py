"""The vocabulary: types, the signature of a method, packets, validation."""
