"""The types that all of the package shares. Imports no other module of it.

Axis letters, used in every docstring: `N` clients, `K` sampled clients, `M` rows of
the largest client, `E` local epochs, `S` steps per epoch, `B` batch, `L` layers.
"""

from typing import Any, NamedTuple

import jax

PyTree = Any
Key = jax.Array
Array = jax.Array


class SparseModel(NamedTuple):
    """A network's parameters with the positions that are alive.

    `mask` has the treedef of `params`, is boolean and total: True wherever a leaf
    cannot be pruned. `stats` holds normalisation statistics, `{}` if there are none.
    """

    params: PyTree  # float32
    mask: PyTree  # bool, same treedef and shapes as params
    stats: PyTree  # float32


class EmptyState(NamedTuple):
    """The state of a client that keeps nothing between rounds."""


class ClientInfo(NamedTuple):
    """Facts about one client; the simulator keeps them stacked [N]."""

    index: Array  # shape=(), int32
    num_examples: Array  # shape=(), int32: training samples
    budget: Array  # shape=(), float32: the share of the model it can hold, (0, 1]


class Context(NamedTuple):
    """The round and the client of one call; rounds count from 0 within the stage."""

    round: Array  # shape=(), int32
    last_round: Array  # shape=(), int32: when this client last took part, or -1
    client: ClientInfo


class Batches(NamedTuple):
    """One client's data for one round.

    A step beyond the client's own data has weight 0 throughout, and `local.train` does
    not change the state in it. Clients that run together share `num_steps`, so that it
    stays unbatched under vmap and bounds the loop.
    """

    x: Array  # [M, ...] uint8 or float32, the client's rows
    y: Array  # [M] int32
    order: Array  # [E, S, B] int32, rows of x
    weight: Array  # [E, S, B] float32, 1 for a valid sample and 0 for padding
    num_steps: Array  # shape=(), int32: steps per epoch to run, at most S


class Work(NamedTuple):
    """The multiplications of local training, from which the ledger computes FLOPs.

    Each field but the last is a tree like `params`: the sum over processed samples of
    the share of the leaf's entries that took part in that pass. `extra` counts the
    FLOPs of work on masks.
    """

    forward: PyTree  # float32 scalars
    input_grad: PyTree  # float32 scalars
    weight_grad: PyTree  # float32 scalars
    extra: Array  # shape=(), float32, FLOPs
