"""The functions of a federated method, and the stage that runs one.

A new method is one file in `algorithms/`: a factory that returns an `Algorithm` of pure
functions for *one* client. `round_program.py` samples, vmaps, sums, scans and donates.

    def my_method(model, optimizer, *, strength=0.1):
        '''Authors, venue, link. What travels, what a client keeps.'''

        def init(key, start): ...  # -> server
        def broadcast(key, ctx, server): ...  # -> dict[str, Packet]
        def update(key, ctx, downlink, client, batches): ...
            # -> (uplink, client, metrics)
        def contribute(ctx, uplink): ...  # -> what the server adds up
        def aggregate(key, round, server, total): ...  # -> (server, metrics)
        def deploy(key, server): ...  # -> dict[str, SparseModel]

        return Algorithm(init, broadcast, update, contribute, aggregate, deploy)

A method whose clients remember something adds `init_client`, one whose clients have
models of their own `personalize`.

The server sees only the sum of what `contribute` returns, so memory is that of a chunk
of clients, never of the cohort. `update` sees only the downlink and `contribute` only
the uplink: what travels is what is counted. `laws.check_algorithm` checks the laws.
A factory whose method follows a schedule of its own calls its length `rounds`: a run is
extended beyond it only where the user asks for that.
"""

from collections.abc import Callable
from typing import NamedTuple

from sparsefl_jax.core.types import EmptyState


def no_client_state(key, server, info) -> EmptyState:
    """Returns the state of a client that remembers nothing."""
    del key, server, info
    return EmptyState()


class Algorithm(NamedTuple):
    """A federated method as pure functions, and what is known of its masks.

    Attributes:
      init: `(key, start: SparseModel) -> server`.
      broadcast: `(key, ctx, server) -> downlink`, a `dict[str, Packet]`.
      update: `(key, ctx, downlink, client, batches) -> (uplink, client, metrics)`.
        Metrics are sums (`loss`, `correct`, `count`: over processed samples), `work`,
        and any scalars of your own, which are averaged over the cohort. One called
        `density`, of personal models, stands for that of the server's in the log.
      contribute: `(ctx, uplink) -> summand`, float32, summed over the cohort.
      aggregate: `(key, round, server, total) -> (server, metrics)`, a dict of scalars;
        `round` is a scalar int32 that counts from 0 within the stage.
      deploy: `(key, server) -> dict[str, SparseModel]`, the server's models. The first
        is the headline; `target` is what an export and the next stage take.
      init_client: `(key, server, info) -> client`; the server is as `init` made it. By
        default clients remember nothing.
      personalize: `(key, server, client, info) -> dict[str, SparseModel]`, a client's
        own models, the first of which is the headline; None where there are none.
      alive: optional, `(round) -> float` in [0, 1]. As it follows from the arguments
        alone, the share of entries that are alive at most once `round` rounds of the
        stage are done, a Python int from 1: of those under masks in the next downlink,
        or in the model that is handed on. For the plan, which sees by itself what the
        first masks are and whether they stay; it knows nothing of others without it.
    """

    init: Callable
    broadcast: Callable
    update: Callable
    contribute: Callable
    aggregate: Callable
    deploy: Callable
    init_client: Callable = no_client_state
    personalize: Callable | None = None
    alive: Callable | None = None


def target(models: dict):
    """The deployed model at the target density: 'global', or else the last.

    Example:
      >>> target({"aggregated": 1, "masked": 2}), target({"global": 3, "unpruned": 4})
      (2, 3)
    """
    return models.get("global", list(models.values())[-1])


class Stage(NamedTuple):
    """A number of rounds under one algorithm; a run is a sequence of stages.

    The stage's index is folded into the key. `sampler` is a pure function
    `(key, round) -> ids [K] int32`; None draws `cohort_size` clients uniformly without
    replacement. `drop_last` leaves a partial batch out, unless it is a client's only.
    """

    algorithm: Algorithm
    num_rounds: int
    cohort_size: int
    epochs: int = 1
    batch_size: int = 32
    sampler: Callable | None = None
    drop_last: bool = False
