"""The benchmark of sparse federated methods, version 1; docs/benchmark.md shows it."""
