"""When Complement Sparsification is like FedAvg: its condition and its two errors.

Jiang and Borcea, AAAI 2023, https://arxiv.org/abs/2303.06237, section 3.5. One round is
FedAvg with the server's rate eta' eta, if two approximations hold: that kept weights do
not move in training (eq. 9), and that pruning removes little (eq. 12).
"""

from typing import NamedTuple

import jax
import numpy as np

from sparsefl_jax.analysis.fedsparsify import pruned_norm
from sparsefl_jax.core.check import check
from sparsefl_jax.core.types import PyTree


class Approximation(NamedTuple):
    """The errors of one round, L2 norms, and the size of the step itself."""

    kept_moved: float  # eq. 9: eta' times what training has changed of kept weights
    pruned: float  # eq. 12: what pruning has removed of the aggregate
    step: float  # eta' times the mean change, which FedAvg would add


def check_ratio(aggregation_ratio: float, learning_rate: float) -> float:
    """Returns the server's rate eta' eta of eq. 12; refuses a ratio that breaks it.

    Args:
      aggregation_ratio: eta', in [1, 1 / eta] by section 3.5: below, pruned weights do
        not outgrow the others; above, the model explodes.
      learning_rate: eta, of the clients' SGD.

    Raises:
      ValueError: the ratio is out of that range, or the rate is not in (0, 1].

    Example:
      >>> round(check_ratio(1.5, 0.1), 3)
      0.15
      >>> check_ratio(15, 0.1)
      Traceback (most recent call last):
      sparsefl_jax.UserError: aggregation_ratio=15, expected in [1, 10.0]
    """
    check("learning_rate", learning_rate, "(0, 1]")
    check("aggregation_ratio", aggregation_ratio, f"[1, {1 / learning_rate}]")
    return aggregation_ratio * learning_rate


def approximation(
    aggregate: PyTree, mask: PyTree, trained: PyTree, aggregation_ratio: float
) -> Approximation:
    """Returns the errors of both approximations in one round.

    Args:
      aggregate: w_t, the server's dense model before pruning.
      mask: bool, which of its weights pruning keeps.
      trained: the mean of the models that the clients have trained from the pruned one,
        before they drop what the mask keeps.
      aggregation_ratio: eta'.

    Example:
      >>> w, mask = {"w": np.array([5.0, 1.0])}, {"w": np.array([True, False])}
      >>> approximation(w, mask, {"w": np.array([8.0, 4.0])}, 2.0)
      Approximation(kept_moved=6.0, pruned=1.0, step=10.0)
    """
    check("aggregation_ratio", aggregation_ratio, "(0, inf)")
    sent, back = (
        jax.tree.map(lambda v, m: np.where(m, v, 0.0), tree, mask)
        for tree in (aggregate, trained)
    )
    return Approximation(
        kept_moved=aggregation_ratio * pruned_norm(back, sent),
        pruned=pruned_norm(aggregate, sent),
        step=aggregation_ratio * pruned_norm(trained, sent),
    )
