"""Networks; the only package that imports flax."""

from sparsefl_jax.models.base import Model
from sparsefl_jax.models.registry import MODELS, build

__all__ = ["MODELS", "Model", "build", "compact"]
