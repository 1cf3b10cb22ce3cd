"""What a client computes, and how sums over clients become a model."""
