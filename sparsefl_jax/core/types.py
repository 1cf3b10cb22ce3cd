"""Types shared by the whole package. Imports no other module of the package.

Axis letters, used in every docstring: `N` clients, `K` sampled clients, `M` rows of
the largest client, `E` local epochs, `S` steps per epoch, `B` batch, `L` layers.
"""

from typing import Annotated, Any, NamedTuple

import jax

PyTree = Any
Key = jax.Array
Array = jax.Array
AnyArray = Any  # JAX's on devices, NumPy's on the host, or a shape

# Ranges of arguments, which `core.algorithm.method` checks.
Share = Annotated[float, "(0, 1]"]
Fraction = Annotated[float, "[0, 1]"]
Positive = Annotated[float, "(0, inf)"]
NonNegative = Annotated[float, "[0, inf)"]
Count = Annotated[int, "[1, inf)"]


class SparseModel(NamedTuple):
    """A network's parameters and the mask of the entries that are alive.

    `mask` has the treedef of `params` and a boolean for every entry, which is True in
    leaves that cannot be pruned. `stats` holds normalisation statistics, `{}` if there
    are none.
    """

    params: PyTree  # float32
    mask: PyTree  # bool, same treedef and shapes as params
    stats: PyTree  # float32


class Frozen(NamedTuple):
    """The weights that all clients hold, and that no method trains or sends."""

    entries: int = 0
    macs: int = 0  # multiply-adds of a sample in the forward pass
    source: str = ""  # where clients have them from; '': they follow from a seed
    charged: bool = False  # whether a client's first downlink is charged for them


class EmptyState(NamedTuple):
    """The state of a client that keeps nothing between rounds."""


class ClientInfo(NamedTuple):
    """Properties of one client; the simulator keeps them stacked [N]."""

    index: AnyArray  # shape=(), int32
    num_examples: AnyArray  # shape=(), int32: training samples
    budget: AnyArray  # shape=(), float32: what it can hold, a share in (0, 1]


class Context(NamedTuple):
    """The round and the client of a call; rounds count from 0 within the stage."""

    round: Array  # shape=(), int32
    last_round: Array  # shape=(), int32: last round of this client, -1 before its first
    client: ClientInfo


class ServerContext(NamedTuple):
    """The round of a call of `aggregate`; rounds count from 0 within the stage."""

    round: Array  # shape=(), int32
    heard: Array  # shape=(), int32: clients whose uplinks arrived in time; may be 0


class Batches(NamedTuple):
    """One client's data for one round.

    Steps beyond the client's own data have weight 0 for all samples, and `local.train`
    leaves the state unchanged in them. Clients that run together share `num_steps`, so
    that it stays unbatched under vmap and bounds the loop. It is NumPy's where all
    clients of the run have as many, so that there are no such steps: a method that
    makes some, by a weight of 0, has to set `num_steps` to JAX's.
    """

    x: Array  # [M, ...] uint8, float32 or integers, the client's rows
    y: Array  # [M] int32, or [M, T] where a sample has T targets
    order: Array  # [E, S, B] int32, rows of x
    weight: Array  # [E, S, B] float32, 1 for a valid sample and 0 for padding
    num_steps: AnyArray  # shape=(), int32: steps per epoch to run, at most S


class Work(NamedTuple):
    """The work of local training, from which the ledger computes FLOPs.

    The first three are trees like `params`. They hold, for each leaf, the share of its
    entries that take part in the pass, summed over all processed samples. `extra`
    counts the FLOPs spent on masks; the simulator adds those of held weights, which
    take part in the first two passes of every sample.
    """

    forward: PyTree  # float32 scalars
    input_grad: PyTree  # float32 scalars
    weight_grad: PyTree  # float32 scalars
    samples: Array  # shape=(), float32, that went through the network
    extra: Array  # shape=(), float32, FLOPs
