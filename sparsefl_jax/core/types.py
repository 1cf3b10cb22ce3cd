"""The vocabulary of the package. Imports nothing of ours.

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

    `mask` has the treedef of `params`, is boolean and total: True where a leaf can not
    be pruned. `stats` holds normalisation statistics, `{}` where the model has none.
    """

    params: PyTree  # float32
    mask: PyTree  # bool, same treedef and shapes as params
    stats: PyTree  # float32


class EmptyState(NamedTuple):
    """The client state of an algorithm whose clients remember nothing."""


class ClientInfo(NamedTuple):
    """Facts about a client that the simulator owns; stacked [N] in the simulator."""

    index: Array  # shape=(), int32
    num_examples: Array  # shape=(), int32: training samples
    budget: Array  # shape=(), float32: the share of the model it can hold, (0, 1]


class Context(NamedTuple):
    """A client's place in the stage; rounds count from 0 within the stage."""

    round: Array  # shape=(), int32
    last_round: Array  # shape=(), int32: when this client last took part, or -1
    client: ClientInfo


class Batches(NamedTuple):
    """One client's data for one round.

    A step beyond the client's own data has weight 0 throughout: `local.train` leaves
    the state as it was there. `num_steps` is shared by clients that run together, so
    that it stays unbatched under vmap and bounds the loop.
    """

    x: Array  # [M, ...] uint8 or float32, the client's rows
    y: Array  # [M] int32
    order: Array  # [E, S, B] int32, rows of x
    weight: Array  # [E, S, B] float32, 1 for a valid sample and 0 for padding
    num_steps: Array  # shape=(), int32: steps per epoch to run, at most S


class Work(NamedTuple):
    """What local training multiplied, for the ledger of FLOPs.

    Each field is a tree like `params`: the sum over processed samples of the share of
    the leaf's entries that took part in that pass. `extra` counts FLOPs of mask work.
    """

    forward: PyTree  # float32 scalars
    input_grad: PyTree  # float32 scalars
    weight_grad: PyTree  # float32 scalars
    extra: Array  # shape=(), float32, FLOPs
