"""Runs that differ in their seed alone, as one program with a leading axis [S].

Every device trains its clients of every run: the seeds are replicated, and the clients
are divided as those of a single run are. So S need not fit the number of devices, and
the program of a round is that of a single run, mapped.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from sparsefl_jax.core.types import PyTree
from sparsefl_jax.simulation import placement
from sparsefl_jax.system import processes


class Replicas(NamedTuple):
    """The runs of one program."""

    count: int  # S
    axes: placement.Population  # 0, or None for what all runs share


def of(populations: Sequence[placement.Population]) -> Replicas:
    """Finds out what runs share of their data.

    Args:
      populations: of the runs, NumPy arrays of the same shapes.

    Example:
      >>> x, y, info = np.ones(3), np.arange(3), {}
      >>> tables = [[0, 1], [2, 0]]
      >>> each = [placement.Population(x, y, np.array([t]), info) for t in tables]
      >>> of(each)
      Replicas(count=2, axes=Population(x=None, y=None, index=0, info={}, clock=None))
    """

    def axis(first, *others):
        same = all(v is first or np.array_equal(v, first) for v in others)
        return None if same else 0

    return Replicas(len(populations), jax.tree.map(axis, *populations))


def widened(replicas: Replicas, tree: PyTree, axes: PyTree = 0) -> PyTree:
    """Returns the shapes of all runs from those of one.

    Args:
      replicas: the runs.
      tree: shapes with shardings.
      axes: 0, or a tree of 0, and None for what the runs share.
    """

    def wide(v):
        shape = replicas.count, *v.shape
        return jax.ShapeDtypeStruct(shape, v.dtype, sharding=leading(v.sharding))

    def widen(axis, part):
        return part if axis is None else jax.tree.map(wide, part)

    return jax.tree.map(widen, axes, tree, is_leaf=lambda v: v is None)


def leading(sharding: NamedSharding | None) -> NamedSharding | None:
    """Returns a sharding for arrays with a leading axis, which is replicated."""
    if sharding is None:
        return None
    return NamedSharding(sharding.mesh, P(None, *sharding.spec))


def put(
    replicas: Replicas,
    plan: placement.Plan,
    populations: Sequence[placement.Population],
) -> placement.Population:
    """Puts the data of all runs on the plan's devices; what they share only once."""

    def stack(axis, first, *others):
        return first if axis is None else np.stack([first, *others])

    leaves = jax.tree.map(
        stack, replicas.axes, *populations, is_leaf=lambda v: v is None
    )
    return processes.put(leaves, NamedSharding(plan.mesh, P()))


def stacking(replicas: Replicas, shardings: PyTree) -> tuple[Callable, Callable]:
    """Returns the functions that put the states of runs in a row, and take them out.

    Args:
      replicas: the runs.
      shardings: of the state of one run.

    Returns:
      `stack(states) -> state`, which has a leading axis [S], and
      `unstack(state) -> states`.
    """
    wide = jax.tree.map(leading, shardings)
    stack = jax.jit(
        lambda states: jax.tree.map(lambda *v: jnp.stack(v), *states),
        out_shardings=wide,
    )
    unstack = jax.jit(
        lambda state: [
            jax.tree.map(lambda v, i=i: v[i], state) for i in range(replicas.count)
        ],
        out_shardings=[shardings] * replicas.count,
    )
    return stack, unstack
