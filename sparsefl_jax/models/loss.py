"""Losses: what training minimises and evaluation reports."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import optax

from sparsefl_jax.core.algorithm import method
from sparsefl_jax.core.types import Array

SUMS = ("loss", "correct", "count")


def cross_entropy(
    logits: Array, targets: Array, weight: Array
) -> tuple[Array, dict[str, Array]]:
    """Returns the mean softmax cross-entropy of a batch's valid samples.

    Args:
      logits: [B, C] float32, or [B, T, C] where a sample has T targets.
      targets: int, labels [B] or [B, T], or float like logits, distributions over the
        classes.
      weight: [B], 0 for padded samples.

    Returns:
      `(loss, sums)`: the loss in nats per sample, and float32 sums over valid samples:
      `loss`, `correct` (samples whose largest logit is that of the most likely class)
      and `count`. A sample with T targets adds its means over them.

    Example:
      >>> logits = jnp.array([[0.0, 0.0], [9.0, 1.0]])
      >>> loss, sums = cross_entropy(logits, jnp.array([0, 1]), jnp.array([1.0, 0.0]))
      >>> round(loss.item(), 3), sums["count"].item()
      (0.693, 1.0)
    """
    if targets.ndim == logits.ndim:  # static branch
        losses = optax.losses.softmax_cross_entropy(logits, targets)
        labels = jnp.argmax(targets, -1)
    else:
        losses = optax.losses.softmax_cross_entropy_with_integer_labels(logits, targets)
        labels = targets
    hits = jnp.argmax(logits, -1) == labels
    if hits.ndim > 1:  # a sample's targets count as one
        axes = tuple(range(1, hits.ndim))
        losses, hits = jnp.mean(losses, axes), jnp.mean(hits, axes, dtype=jnp.float32)
    return _mean(losses, weight, hits)


def sigmoid_cross_entropy(
    logits: Array, targets: Array, weight: Array
) -> tuple[Array, dict[str, Array]]:
    """Returns the mean binary cross-entropy of samples with several labels.

    Args:
      logits: [B, K] float32.
      targets: [B, K] bool, whether each label applies.
      weight: [B], 0 for padded samples.

    Returns:
      `(loss, sums)` as of `cross_entropy`, in nats a label; `correct` is NaN.

    Example:
      >>> given = jnp.zeros((1, 2)), jnp.array([[True, False]]), jnp.ones(1)
      >>> round(sigmoid_cross_entropy(*given)[0].item(), 3)
      0.693
    """
    losses = optax.losses.sigmoid_binary_cross_entropy(logits, targets)
    return _mean(jnp.mean(losses, -1), weight)


@method
def regression_error(
    error: Literal["squared", "absolute"] = "squared",
    *,
    scale: tuple[float, ...] = (1.0,),
) -> Callable:
    """Returns the loss of a regression, the mean over targets and samples.

    Args:
      error: of a target.
      scale: [T], by which errors are divided, the deviations of the targets.

    Returns:
      `(outputs [B, T], targets [B] or [B, T], weight [B]) -> (loss, sums)`, as
      `cross_entropy`; `correct` is NaN.

    Example:
      >>> loss = regression_error(scale=(2.0,))
      >>> loss(jnp.array([[4.0]]), jnp.array([0.0]), jnp.ones(1))[0].item()
      4.0
    """

    def loss(outputs, targets, weight):
        errors = (outputs - targets.reshape(outputs.shape)).reshape(len(outputs), -1)
        errors /= jnp.float32([scale])
        losses = errors**2 if error == "squared" else jnp.abs(errors)
        return _mean(jnp.mean(losses, -1), weight)

    return loss


def knows_classes(loss: Callable) -> bool:
    """Returns whether a loss is of a task with classes, and counts what is correct."""
    others = sigmoid_cross_entropy.__name__, regression_error.__name__
    return getattr(loss, "name", getattr(loss, "__name__", "")) not in others


def _mean(
    losses: Array, weight: Array, hits: Array | float = jnp.nan
) -> tuple[Array, dict[str, Array]]:
    """Returns the mean loss of valid samples, and the sums over them."""
    valid = weight > 0
    total = jnp.sum(jnp.where(valid, losses, 0.0))
    correct = jnp.sum(jnp.where(valid, hits, 0), dtype=jnp.float32)
    count = jnp.sum(valid, dtype=jnp.float32)
    sums = {"loss": total, "correct": correct, "count": count}
    return total / jnp.maximum(count, 1.0), sums


def per_sample(loss: Callable, logits: Array, targets: Array) -> tuple[Array, Array]:
    """Returns every sample's share of correct targets and its loss, [B] float32.

    Args:
      loss: `(logits, targets, weight) -> (loss, sums)`, as `Model.with_loss` takes it.
      logits: [B, C] or [B, T, C] float32.
      targets: [B] or [B, T] labels.

    Example:
      >>> hits, losses = per_sample(cross_entropy, jnp.zeros((2, 2)), jnp.array([0, 1]))
      >>> hits.tolist()
      [1.0, 0.0]
    """

    def one(logits, target):
        _, sums = loss(logits[None], target[None], jnp.ones((1,), jnp.float32))
        return sums["correct"], sums["loss"]

    return jax.vmap(one)(logits, targets)
