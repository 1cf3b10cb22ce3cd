"""Means over the cohort, split into summands of clients and a division on the server.

`contribute` returns a summand per client, the simulator adds them up in float32, and
`aggregate` divides. A weight of 0 removes a client whatever its values are, NaN
included. Sources: McMahan et al., AISTATS 2017 (weighted mean); Babakniya et al.,
FLASH, TMLR 2023, https://arxiv.org/abs/2208.13092 (WFA: the mean over the clients that
hold an entry).
"""

from typing import Literal

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from sparsefl_jax.core.types import Array, PyTree, ServerContext

Weighting = Literal["examples", "uniform"]
WEIGHTINGS = {  # a client's weight in a mean, a scalar, from its `ClientInfo`
    "examples": lambda client: client.num_examples,
    "uniform": lambda client: jnp.ones_like(client.num_examples),
}


def weighted_sum(tree: PyTree, weight: ArrayLike = 1) -> dict[str, PyTree]:
    """Returns one client's summand of a weighted mean.

    Args:
      tree: the client's values, any real dtype.
      weight: scalar >= 0, such as its number of samples; 0 if it sent nothing. All
        clients count alike by default.

    Returns:
      `{'sum': weight * tree, 'weight': weight}`, float32.

    Example:
      >>> weighted_sum(jnp.float32(2.), jnp.int32(3))['sum'].item()
      6.0
    """
    weight = jnp.asarray(weight).astype(jnp.float32)
    return {"sum": jax.tree.map(lambda x: _scale(x, weight), tree), "weight": weight}


def weighted_mean(total: dict[str, PyTree], old: PyTree | None = None) -> PyTree:
    """Returns the weighted mean from the sum of the summands.

    Args:
      total: the sum of the results of `weighted_sum`.
      old: the result if the weight is 0, as nobody was heard or chose to send: the old
        values of a model or of statistics, None for zeros, as of changes, scores or
        gradients. The result has its dtypes, float32 if it is None.

    Returns:
      A tree like `total['sum']`.

    Example:
      >>> total = {'sum': jnp.float32(6.), 'weight': jnp.float32(3.)}
      >>> weighted_mean(total, jnp.float32(9.)).item()
      2.0
    """
    weights = jax.tree.map(lambda _: total["weight"], total["sum"])
    return covered_mean({"sum": total["sum"], "weight": weights}, old)


def zeros(total: dict[str, PyTree]) -> PyTree:
    """Returns zeros like a mean."""
    return optax.tree.zeros_like(total["sum"])


def covered_sum(tree: PyTree, mask: PyTree, weight: Array) -> dict[str, PyTree]:
    """Returns one client's summand of a mean over the clients that hold an entry.

    Args:
      tree: the client's values.
      mask: bool, treedef of `tree`: the entries that the client holds.
      weight: scalar >= 0; 0 if it sent nothing.

    Returns:
      `{'sum': weight * mask * tree, 'weight': weight * mask}`, float32 trees.

    Example:
      >>> one = covered_sum(jnp.ones(2), jnp.array([True, False]), jnp.float32(3.))
      >>> one['sum'].tolist(), one['weight'].tolist()
      ([3.0, 0.0], [3.0, 0.0])
    """
    weight = jnp.asarray(weight).astype(jnp.float32)
    zero = jnp.float32(0)
    held = jax.tree.map(lambda m: jnp.where(m, weight, zero), mask)
    total = jax.tree.map(lambda x, m: jnp.where(m, _scale(x, weight), zero), tree, mask)
    return {"sum": total, "weight": held}


def covered_mean(total: dict[str, PyTree], old: PyTree | None = None) -> PyTree:
    """Returns the mean of each entry over the clients that hold it.

    Args:
      total: the sum of the results of `covered_sum`.
      old: the values of entries that no client holds: those of before (HeteroFL,
        FjORD), or None for zeros (WFA, FedDST, and changes). The result has its dtypes,
        float32 if it is None.

    Returns:
      A tree like `total['sum']`.

    Example:
      >>> total = {'sum': jnp.array([6., 0.]), 'weight': jnp.array([3., 0.])}
      >>> covered_mean(total, jnp.array([8., 9.])).tolist()
      [2.0, 9.0]
    """
    old = zeros(total) if old is None else old
    return jax.tree.map(_divide, total["sum"], total["weight"], old)


def if_heard(ctx: ServerContext, new: PyTree, old: PyTree) -> PyTree:
    """Returns the new values, or the old ones if nobody was heard in the round.

    Args:
      ctx: as `aggregate` has it.
      new, old: trees with the same shapes and dtypes.

    Example:
      >>> lost = ServerContext(jnp.int32(3), jnp.int32(0))
      >>> if_heard(lost, jnp.float32(2.), jnp.float32(1.)).item()
      1.0
    """
    return optax.tree.where(ctx.heard > 0, new, old)


def _scale(x: Array, weight: Array) -> Array:
    """Returns weight * x, and 0 where the weight is 0, even if x is infinite."""
    x = jnp.asarray(x).astype(jnp.float32)
    return jnp.where(weight > 0, weight * x, jnp.zeros_like(x))


def _divide(total: Array, weight: Array, old: Array) -> Array:
    """Returns total / weight, and the old value where the weight is 0."""
    safe = jnp.where(weight > 0, weight, jnp.ones_like(weight))
    return jnp.where(weight > 0, (total / safe).astype(old.dtype), old)
