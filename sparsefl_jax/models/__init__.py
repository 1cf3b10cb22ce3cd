"""Networks as pure functions; all flax modules are in this folder."""

from sparsefl_jax.models.base import Model
from sparsefl_jax.models.loss import cross_entropy
from sparsefl_jax.models.measure import Measure
from sparsefl_jax.models.registry import MODELS, build
from sparsefl_jax.models.task import for_task

__all__ = ["MODELS", "Measure", "Model", "build", "cross_entropy", "for_task"]
