"""Fixtures of the tests of methods."""

from tests.algorithms.given_updates import given_updates as given_updates
