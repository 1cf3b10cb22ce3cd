"""Comparisons of runs: equal cost, intervals, differences, and their page."""
