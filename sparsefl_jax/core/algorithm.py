"""The functions of a federated method, and the stage that runs one.

A new method is one file in `algorithms/`: a factory that returns an `Algorithm` of pure
functions for *one* client. `data.cohorts` draws clients; `simulation.round_program`
maps over them, sums what they contribute, and loops over the rounds of a segment.

    @method
    def my_method(model, optimizer, *, strength: Positive = 0.1):
        '''Authors, venue, link. What travels, what a client keeps.'''

        def init(key, start): ...  # -> server
        def broadcast(key, ctx, server): ...  # -> dict[str, Packet]
        def update(key, ctx, downlink, client, batches): ...
            # -> (uplink, client, metrics)
        def contribute(ctx, uplink): ...  # -> one client's term of the sum
        def aggregate(key, ctx, server, total): ...  # -> (server, metrics)
        def deploy(key, server): ...  # -> dict[str, SparseModel]

        return Algorithm(init, broadcast, update, contribute, aggregate, deploy)

A method whose clients keep a state adds `init_client`, and `send_once` if the initial
state depends on the server. A method with personal models adds `personalize`.

The server sees only the sum of the values that `contribute` returns, so a round needs
memory for a chunk of clients, not for the whole cohort. `init_client` sees only what
`send_once` sends, `update` only the downlink and `contribute` only the uplink, so every
value that crosses the network is counted. `laws.check_algorithm` checks this.

If a method follows a schedule of fixed length, its factory takes that length as the
argument `rounds`. A run that is extended beyond it says so.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import jax
import numpy as np
import optax

from sparsefl_jax.core import types
from sparsefl_jax.core.check import check_arguments
from sparsefl_jax.core.types import Array, ClientInfo, Context, Key, PyTree, SparseModel

P = ParamSpec("P")
T = TypeVar("T")
Message = dict[str, Any]  # of `wire.packets.Packet`, which lies above this folder


# Returns the gradient transformation that clients use in a round.
Optimizer = Callable[[Any], optax.GradientTransformation]
# Draws the clients of a round, [K] int32, from a key and the round.
Sampler = Callable[[Key, Array], Array]


def send_nothing(server: PyTree) -> Message:
    """Returns the empty message of a server that hands clients nothing."""
    return {}


def no_client_state(key: Key, received: Message, info: ClientInfo) -> types.EmptyState:
    """Returns the state of a client that keeps nothing."""
    return types.EmptyState()


def keep_row(ctx: Context, before: PyTree, after: PyTree) -> PyTree:
    """Returns the state after training, whether or not the uplink arrived in time."""
    return after


# Fields of an `Algorithm` that are no part of a round.
_FACTS = {"clients", "privacy", "name", "settings", "remake"}


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """A federated method as pure functions.

    Attributes:
      init: `(key, start: SparseModel) -> server`.
      broadcast: `(key, ctx, server) -> downlink`, a `dict[str, Packet]`.
      update: `(key, ctx, downlink, client, batches) -> (uplink, client, metrics)`.
        Metrics are those of `ledger.METRICS`, and any further scalars, which are
        averaged over the cohort.
      contribute: `(ctx, uplink) -> summand`, float32, summed over the cohort.
      aggregate: `(key, ctx, server, total) -> (server, metrics)`, a dict of scalars;
        `ctx` is a `ServerContext`. If no uplink of a round arrives in time, `ctx.heard`
        is 0 and `total` holds zeros: no weight may change then but those that the
        method's own mask removes, see `means.if_heard`.
      deploy: `(key, server) -> dict[str, SparseModel]`, the server's models. The first
        one represents the method, see `target`; if one of them is cut to the target
        density, it comes first.
      init_client: `(key, received, info) -> client`, the state of a client before its
        first round. `received` is the message of `send_once`. By default
        clients keep no state.
      personalize: `(key, server, client, info) -> dict[str, SparseModel]`, a client's
        personal models, the first of which gives the headline accuracy; None if the
        method has none.
      density_after: optional, `(round: int) -> float` in [0, 1], for masks that shrink
        from round to round: the share that is alive after `round` rounds of the stage.
        A pilot's costs are scaled by it to the rounds of the run, see
        `runs.fit_rounds`; without it, the share is taken to stay.
      drop_uplink: `(ctx, before, after) -> client`, the state of a client whose uplink
        arrived too late to be summed. `before` is its state before the round, `after`
        the one that `update` returned, which a client keeps by default. A method needs
        this function if `after` assumes that the server received the uplink.
      send_once: `(server) -> dict[str, Packet]`, all that `init_client` sees of the
        server. It is charged in a client's first round and must be the same in all
        rounds of a stage. By default {}.
      clients: the number of all clients, if the method divides by it. A run of another
        number is refused.
      privacy: the arguments of `private`, from which its `promise` computes what the
        released models reveal; None if the method is not private.
      name: the name of its factory, if that is decorated with `method`.
      settings: the arguments of its factory, by name.
      remake: `(optimizer) -> Algorithm`, its factory with another optimizer; None if it
        takes none, or if `replace` has changed what it returned.
    """

    init: Callable[[Key, SparseModel], PyTree]
    broadcast: Callable[[Key, Context, PyTree], Message]
    update: Callable[[Key, Context, Message, PyTree, types.Batches], tuple]
    contribute: Callable[[Context, Message], PyTree]
    aggregate: Callable[[Key, types.ServerContext, PyTree, PyTree], tuple]
    deploy: Callable[[Key, PyTree], dict[str, SparseModel]]
    init_client: Callable[[Key, Message, ClientInfo], PyTree] = no_client_state
    personalize: Callable[..., dict[str, SparseModel]] | None = None
    density_after: Callable[[int], float] | None = None
    drop_uplink: Callable[[Context, PyTree, PyTree], PyTree] = keep_row
    send_once: Callable[[PyTree], Message] = send_nothing
    clients: int | None = None
    privacy: dict[str, Any] | None = None
    name: str = ""
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    remake: Callable[[Any], "Algorithm"] | None = None

    def replace(self, *functions: Callable, **changed: Any) -> "Algorithm":
        """Returns the method with other values, and the rest as it is.

        With another function it is another method, which has no name and no settings
        until they are given: its own factory, decorated with `method`, does so.

        Args:
          *functions: each takes the place of the one that it is called like: `init`.
          **changed: other values by name, functions too.
        """
        changed |= {function.__name__: function for function in functions}
        if changed.keys() - _FACTS:
            changed = {"name": "", "settings": {}, "remake": None} | changed
        return dataclasses.replace(self, **changed)

    def first_state(self, key: Key, server: PyTree, info: ClientInfo) -> PyTree:
        """Returns the state of a client that has not taken part yet."""
        return self.init_client(key, self.send_once(server), info)

    def rates(self, rounds: np.ndarray) -> np.ndarray | None:
        """Returns the clients' learning rates if they can be an input, else None.

        Args:
          rounds: [R] int32.

        Returns:
          [R] float32.

        Example:
          >>> import sparsefl_jax as sfl
          >>> optimizer = sfl.training.make_optimizer(learning_rate=0.5)
          >>> sfl.fedavg(sfl.testing.tiny_model(), optimizer).rates(np.arange(2))
          array([0.5, 0.5], dtype=float32)
        """
        optimizer: Any = self.settings.get("optimizer")
        if self.remake is None or not hasattr(optimizer, "at"):
            return None
        return np.array([optimizer.rate(round) for round in rounds], np.float32)

    def at_rate(self, round: Array, rate: Array | None) -> "Algorithm":
        """Returns the method in a round whose rate is an input; None: itself."""
        if rate is None or self.remake is None:
            return self
        with jax.ensure_compile_time_eval():  # a factory may compute with arrays
            return self.remake(self.settings["optimizer"].at(round, rate))


def target(models: Mapping[str, Any]) -> Any:
    """Returns the model that represents a method: the first that it deploys.

    The headline accuracy, density and mismatch of a round refer to this model. Exports
    and the next stage use it too.

    Args:
      models: models by name, as `deploy` returns them.

    Example:
      >>> target({"masked": 1, "aggregated": 2})
      1
    """
    return next(iter(models.values()))


def method(factory: Callable[P, T]) -> Callable[P, T]:
    """Decorates a factory, which checks its arguments; its results say what they are.

    An argument is checked by its annotation: a class, a range such as
    `Annotated[float, "(0, 1]"]`, choices such as `Literal["global", "layer"]`, or a
    union of these; `core.types` names the usual ranges. Others are not checked.

    Results identify a run made in Python: two runs that differ in a setting are never
    mistaken for one another. It serves factories of methods, networks, optimizers,
    losses, schedules and samplers. If decorated factories call one another, the
    outermost gives the name.

    Args:
      factory: returns a function, a dataclass or a NamedTuple, such as an `Algorithm`,
        a `Model` or an optimizer of optax.

    Returns:
      The factory, whose result has a `name`, that of the factory or its argument
      `name`, and `settings`: its other arguments by name, with their defaults.

    Raises:
      ValueError: by the factory, an argument has another type, range or choice.

    Example:
      >>> from sparsefl_jax.core.types import Share
      >>> @method
      ... def constant(rate: Share, *, scale=2.0):
      ...     return lambda round: rate * scale
      >>> schedule = constant(0.5)
      >>> schedule(0), schedule.name, schedule.settings
      (1.0, 'constant', {'rate': 0.5, 'scale': 2.0})
      >>> constant(2)
      Traceback (most recent call last):
        ...
      sparsefl_jax.UserError: rate=2, expected in (0, 1]
    """
    signature, build = inspect.signature(factory), check_arguments(factory)
    parameters = signature.parameters

    @functools.wraps(factory)
    def make(*args: P.args, **kwargs: P.kwargs) -> T:
        made: Any = build(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        settings = {}
        for name, value in bound.arguments.items():
            several = parameters[name].kind is inspect.Parameter.VAR_KEYWORD
            settings |= value if several else {name: value}
        if any(made is value for value in settings.values()):
            return made  # it has a name of its own
        name = settings.pop("name") if "name" in parameters else factory.__name__
        known = {"name": name, "settings": settings}
        if isinstance(made, Algorithm) and "optimizer" in parameters:

            def remake(optimizer):
                again = signature.bind(*args, **kwargs)
                again.arguments["optimizer"] = optimizer
                return factory(*again.args, **again.kwargs)

            known["remake"] = remake
        if dataclasses.is_dataclass(made):
            return cast(T, dataclasses.replace(cast(Any, made), **known))
        if isinstance(made, tuple) and known.keys() <= {*made._fields}:
            return made._replace(**known)
        if isinstance(made, tuple):  # such as optax's, which lacks these attributes
            made = type(type(made).__name__, (type(made),), {})(*made)
        vars(made).update(known)
        return made

    return make


class Stage(NamedTuple):
    """A number of rounds under one algorithm; a run is a sequence of stages.

    The stage's index is folded into the key. `epochs` is the number of local epochs in
    a round and `batch_size` the number of samples in a batch. `sampler` is a pure
    function `(key, round) -> ids [K] int32` that returns distinct clients; None draws
    `cohort_size` clients uniformly without replacement. `drop_last` leaves out a
    partial batch, unless it is the only batch of its client. `local_steps` takes the
    place of `epochs`, then 1: a client takes so many steps in a round, through its
    samples as often as needed, in a new order each time.
    """

    algorithm: Algorithm
    num_rounds: int
    cohort_size: int
    epochs: int = 1
    batch_size: int = 32
    sampler: Sampler | None = None
    drop_last: bool = False
    local_steps: int | None = None
