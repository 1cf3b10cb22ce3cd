"""Networks as pure functions; all flax modules are in this folder."""

from sparsefl_jax.models.base import Model
from sparsefl_jax.models.loss import cross_entropy
from sparsefl_jax.models.registry import MODELS, build

__all__ = ["MODELS", "Model", "build", "cross_entropy"]
