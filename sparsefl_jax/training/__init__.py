"""Local training on a client, and means over clients."""

from sparsefl_jax.training.local import Trained, make_optimizer, objective, train

__all__ = ["Trained", "make_optimizer", "objective", "train"]
