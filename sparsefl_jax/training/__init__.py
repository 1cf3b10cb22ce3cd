"""Local training on a client, and means over clients."""
