"""Tasks other than classification: their losses and how a network's outputs scale."""

from typing import Any, Literal

import numpy as np

from sparsefl_jax.data.statistics import moments
from sparsefl_jax.models.base import Model
from sparsefl_jax.models.loss import regression_error, sigmoid_cross_entropy


def target_statistics(data: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns mean and deviation of each target over the samples that train, [T] each.

    Args:
      data: a `FederatedData` of numbers. The deviation of a constant counts as 1.
    """
    y = data.y[data.train.gather()]
    return moments(y.reshape(len(y), -1).astype(np.float64))


def with_loss_for(model: Model, data: Any, error: str = "squared") -> Model:
    """Returns a network with the loss of the task, but its own for classes."""
    if data.y.dtype.kind == "b":
        return model.with_loss(sigmoid_cross_entropy)
    if data.y.dtype.kind == "f":
        scale = target_statistics(data)[1]
        return model.with_loss(regression_error(error, scale=scale))
    return model


def for_task(
    model: Model, data: Any, error: Literal["squared", "absolute"] = "squared"
) -> Model:
    """Returns a network with the loss of the task that the labels of `data` set.

    Outputs of a regression are in the units of the targets: the network itself learns
    targets of mean 0 and deviation 1.

    Args:
      model: a network with an output for each label or target.
      data: a `FederatedData`. With classes, the model is returned as it is.
      error: what a regression minimises, of standardised targets.

    Example:
      >>> import sparsefl_jax as sfl
      >>> x, y = np.eye(8, dtype=np.float32), np.arange(8.0)
      >>> data = sfl.from_arrays(x, y, num_clients=2, task="regression")
      >>> model = for_task(sfl.models.build("mlp", 1, (8,)), data)
      >>> model.loss.name
      'regression_error'
    """
    if data.y.dtype.kind == "f":
        model = model.with_outputs(*target_statistics(data))
    return with_loss_for(model, data, error)
