"""The laws that every method obeys, for anyone's method."""
