"""The benchmark of sparse federated methods, version 2; docs/benchmark.md shows it."""
