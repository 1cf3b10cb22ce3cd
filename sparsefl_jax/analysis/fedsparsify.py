"""FedSparsify's convergence bound, Theorem 1, and its count of what is sent.

Stripelis et al., 2022, https://arxiv.org/abs/2204.12430. The theorem is of plain SGD
with S local steps, all clients in every round and equal weights.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from sparsefl_jax.core.check import UserError, check, check_arguments
from sparsefl_jax.core.types import Count, NonNegative, Positive, PyTree


class ConvergenceBound(NamedTuple):
    """The terms whose sum bounds the mean squared norm of the masked gradient."""

    noise: float  # of minibatches and of clients that differ
    start: float  # what there was to learn, falls as 1 / T
    pruning: float  # what pruning removes, which FedAvg lacks

    @property
    def total(self) -> float:
        """Returns the bound."""
        return sum(self)


@check_arguments
def largest_rate(smoothness: Positive, steps: Count) -> float:
    """Returns the rate below which Theorem 1 holds, 1 / (4 sqrt(2) L S^1.5).

    Args:
      smoothness: L, the Lipschitz constant of the clients' gradients.
      steps: S, local steps of a round.

    Example:
      >>> round(largest_rate(1.0, 4), 6)
      0.022097
    """
    return 1 / (4 * math.sqrt(2) * smoothness * steps**1.5)


@check_arguments
def convergence_bound(
    learning_rate: Positive,
    smoothness: Positive,
    steps: Count,
    *,
    variance: NonNegative,
    heterogeneity: NonNegative,
    first_gap: NonNegative,
    lipschitz: NonNegative,
    pruned: Sequence[float],
) -> ConvergenceBound:
    """Returns the terms of Theorem 1.

    Args:
      learning_rate: eta.
      smoothness: L (assumption D.1).
      steps: S, local steps of a round.
      variance: sigma^2 of the minibatches' gradients (D.4).
      heterogeneity: epsilon^2, the largest squared distance of a client's gradient to
        the mean (D.5).
      first_gap: the loss of the first model minus that of the best sparse one.
      lipschitz: L_p of the loss (D.2).
      pruned: [T], in every round the norm of the weights that pruning sets to 0, see
        `pruned_norm` and `pruned_norm_bound`.

    Raises:
      ValueError: an argument is out of range, or the rate is not below `largest_rate`.

    Example:
      >>> terms = convergence_bound(0.01, 1.0, 4, variance=0.1, heterogeneity=0.2,
      ...     first_gap=2.0, lipschitz=1.0, pruned=[0.5, 0.0])
      >>> [round(term, 4) for term in terms]
      [0.0442, 100.0, 25.0]
    """
    most = largest_rate(smoothness, steps)
    if not learning_rate < most:
        raise UserError(f"learning_rate={learning_rate:g}, expected below {most:.3g}")
    for i, norm in enumerate(pruned):
        check(f"pruned[{i}]", norm, "[0, inf)")
    check("rounds in pruned", len(pruned), "[1, inf)")
    rate = learning_rate * smoothness
    noise = (1 + 4 * rate * steps**2) * variance + 16 * rate * steps**3 * heterogeneity
    scale = 4 / (len(pruned) * learning_rate * steps)
    return ConvergenceBound(
        2 * rate * noise, scale * first_gap, scale * lipschitz * math.fsum(pruned)
    )


def pruned_norm(dense: PyTree, pruned: PyTree) -> float:
    """Returns the norm of what pruning has removed from a model.

    Args:
      dense: parameters right before pruning.
      pruned: the same parameters after it.

    Example:
      >>> dense, pruned = np.array([3.0, 4.0, 9.0]), np.array([0.0, 0.0, 9.0])
      >>> pruned_norm({"w": dense}, {"w": pruned})
      5.0
    """
    gaps = jax.tree.map(lambda a, b: np.asarray(a, np.float64) - b, dense, pruned)
    return math.sqrt(math.fsum(float(np.sum(g**2)) for g in jax.tree.leaves(gaps)))


def pruned_norm_bound(norm: float, before: float, after: float) -> float:
    """Returns a bound of `pruned_norm` from sparsities alone.

    Of the weights that are left, pruning removes the smallest, a share q. They hold at
    most a share q of the squared norm, so sqrt(q) times the norm bounds theirs.
    Appendix D.1 has q times the norm, "less or about": weights of one size exceed it.

    Args:
      norm: of the weights right before pruning.
      before: sparsity before the round, a share of all weights.
      after: sparsity that pruning by magnitude leaves.

    Example:
      >>> pruned_norm_bound(10.0, 0.2, 0.4)  # a quarter of those that are left
      5.0
    """
    check("norm", norm, "[0, inf)")
    check("before", before, "[0, 1)")
    check("after", after, f"[{before}, 1]")
    return norm * math.sqrt((after - before) / (1 - before))


def exchanged(alive: Sequence[int], cohort: int) -> int:
    """Views the parameters sent both ways, as FedSparsify's column C.C. counts them.

    The column charges an upload at the size *after* its round's purge, and no
    positions: it sums K (n_{t-1} + n_t) over the rounds t.

    Args:
      alive: n_0 to n_T, non-zero parameters and statistics after each round.
      cohort: K, clients of a round.

    Example:
      >>> exchanged([10, 10, 5], 2)
      70
    """
    return cohort * (sum(alive[:-1]) + sum(alive[1:]))
