"""Networks as pure functions. No other folder imports flax."""

from sparsefl_jax.models.base import Model
from sparsefl_jax.models.registry import MODELS, build

__all__ = ["MODELS", "Model", "build"]
