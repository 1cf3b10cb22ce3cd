"""Checks any method against the laws that every method obeys."""

from sparsefl_jax.testing.laws import ContractError, check_algorithm
from sparsefl_jax.testing.small_world import tiny_model

__all__ = ["ContractError", "check_algorithm", "tiny_model"]
