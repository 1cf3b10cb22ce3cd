"""The law that comes first: the functions return what `algorithm.py` says."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core.types import Context, PyTree, SparseModel
from sparsefl_jax.testing import small_world
from sparsefl_jax.testing.compare import fail, leaves, rows
from sparsefl_jax.testing.small_world import World
from sparsefl_jax.wire.packets import Packet


def law_signature(world: World) -> None:
    """The functions return what `algorithm.py` says, as arrays in a pytree."""
    method, key = world.algorithm, world.key
    info = rows(world.population.info, 0)
    ctx = Context(jnp.int32(0), jnp.int32(-1), info)
    data = small_world.batches_jit(world)(key, world.population, info)

    server = _arrays(world, "init", _returned(method.init, key, world.model))
    row = _returned(method.init_client, key, server, info)
    row = _arrays(world, "init_client", row)
    down = _returned(method.broadcast, key, ctx, server)
    down = _message(world, "broadcast", down)
    told = _returned(method.update, key, ctx, down, row, data)
    up, row, metrics = _several(
        world, "update", ("uplink", "client", "metrics"), told, last=dict
    )
    up = _message(world, "update: uplink", up)
    row = _arrays(world, "update: client", row)
    _arrays(world, "update: metrics", metrics)
    summand = _returned(method.contribute, ctx, up)
    total = _arrays(world, "contribute", summand)
    told = _returned(method.aggregate, key, jnp.int32(0), server, total)
    told = _several(world, "aggregate", ("server", "metrics"), told, last=dict)
    _arrays(world, "aggregate", told, or_numbers=True)
    _models(world, "deploy", _returned(method.deploy, key, server))
    if method.personalize is not None:
        models = _returned(method.personalize, key, server, row, info)
        _models(world, "personalize", models)


def _models(world: World, what: str, models) -> None:
    """Fails unless it is a dict of one model or more."""
    _dict_of(world, what, models, SparseModel)
    if not models:
        fail(world, "signature", f"{what} returned {{}}, expected a model")


def _returned(function: Callable, *args):
    """What a function returns, traced, before JAX sees whether it can take it."""
    kept = []

    def call(*args):
        kept.append(function(*args))

    jax.eval_shape(call, *args)
    return kept[0]


def _arrays(world: World, what: str, tree: PyTree, or_numbers=False) -> PyTree:
    """The shapes of a tree of arrays."""
    allowed = (jax.Array, np.ndarray, np.generic)
    allowed += (int, float) if or_numbers else ()
    for path, leaf in leaves(tree):
        if not isinstance(leaf, allowed):
            kind = type(leaf).__name__
            fail(world, "signature", f"{what}{path} is {kind}, expected an array")
    return _shapes(tree)


def _shapes(tree: PyTree) -> PyTree:
    return jax.tree.map(
        lambda v: jax.ShapeDtypeStruct(jnp.shape(v), jnp.result_type(v)), tree
    )


def _message(world: World, what: str, message) -> dict[str, Packet]:
    """The shapes of a message."""
    _dict_of(world, what, message, Packet)
    for name, packet in message.items():
        _arrays(world, f"{what}[{name!r}]: values", packet.values)
        _arrays(world, f"{what}[{name!r}]: mask", packet.mask)
    return _shapes(message)


def _dict_of(world: World, what: str, told, kind: type) -> None:
    """Fails unless it is a dict from names to a kind of thing."""
    wanted = f"expected a dict[str, {kind.__name__}]"
    if not isinstance(told, dict):
        fail(world, "signature", f"{what} is {type(told).__name__}, {wanted}")
    for name, value in told.items():
        if not isinstance(value, kind):
            found = "an array" if isinstance(value, jax.Array) else type(value).__name__
            fail(world, "signature", f"{what}[{name!r}] is {found}, {wanted}")


def _several(world: World, what: str, names: tuple, told, last: type) -> tuple:
    """Fails unless it is a tuple with an entry for each name, the last of a type."""
    wanted = f"expected ({', '.join(names)})"
    plain = type(told) in (tuple, list)  # a NamedTuple is one value
    if not plain or len(told) != len(names):
        found = f"{len(told)} values" if plain else type(told).__name__
        fail(world, "signature", f"{what} returned {found}, {wanted}")
    if not isinstance(told[-1], last):
        found = type(told[-1]).__name__
        fail(world, "signature", f"{what}: {names[-1]} is {found}, {wanted}")
    return told
