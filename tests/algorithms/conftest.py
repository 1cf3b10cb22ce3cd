"""Fixtures of the tests of methods."""

from tests.algorithms.rounds import given_updates as given_updates
