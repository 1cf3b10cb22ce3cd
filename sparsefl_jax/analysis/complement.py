"""When Complement Sparsification is like FedAvg, and how its paper counts FLOPs.

Jiang and Borcea, AAAI 2023, https://arxiv.org/abs/2303.06237. By section 3.5 one round
is FedAvg with the server's rate eta' eta, if two approximations hold: that kept weights
do not move in training (eq. 9), and that pruning removes little (eq. 12). Tables 4 and
5 count the FLOPs that it saves.
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


def complement_flops(macs: int, outputs: int) -> int:
    """Views one sample's FLOPs through a dense layer, as Complement Sparsification.

    The forward pass and the derivatives of hidden state and weights take 2 MAC + n_out
    each.

    Args:
      macs: multiply-adds of one sample through the layer.
      outputs: n_out, its outputs.

    Example:
      >>> complement_flops(96, 3)
      585
    """
    return 3 * (2 * macs + outputs)


def complement_saving(
    macs: int, outputs: int, density: float, client_density: float
) -> float:
    """Views the share of `complement_flops` that Complement Sparsification saves.

    Tables 4 and 5 charge the forward pass at the server's density, the derivative of
    the hidden state in full, and that of the weights at the sum of both densities,
    although a client's weights are dense after its first step.

    Args:
      macs: multiply-adds of one sample through the layer.
      outputs: its outputs, of which each has a bias.
      density: 1 - p, of the server's model.
      client_density: 1 - c, of what the client sends.

    Example:
      >>> round(complement_saving(96, 3, 0.5, 0.113), 3)
      0.291
    """
    saved = 2 * macs * (2 - 2 * density - client_density)
    return saved / complement_flops(macs, outputs)
