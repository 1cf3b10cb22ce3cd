"""The laws of single functions, which are traced alone: what they return and use."""

import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core.algorithm import Algorithm
from sparsefl_jax.core.types import Context, PyTree, ServerContext, SparseModel
from sparsefl_jax.models import Model
from sparsefl_jax.models.forms import equations
from sparsefl_jax.testing import plain_loop
from sparsefl_jax.testing.compare import fail, leaves, rows
from sparsefl_jax.testing.small_world import World
from sparsefl_jax.wire.packets import Packet, layout

# Primitives of callbacks and of Refs.
IMPURE = {"pure_callback", "io_callback", "new_ref", "get", "swap", "addupdate"}


def law_signature(world: World) -> None:
    """Checks that the functions return what `core.algorithm` says, in arrays."""
    method, key = _watch(world), world.key
    info = rows(world.population.info, 0)
    ctx = Context(jnp.int32(0), jnp.int32(-1), info)
    data = plain_loop.batches_jit(world)(key, world.population, info)

    server = _arrays(world, "init", _trace(method.init, key, world.model))
    received = _message(world, "handed", _trace(method.send_once, server))
    row = _trace(method.init_client, key, received, info)
    row = _arrays(world, "init_client", row)
    down = _trace(method.broadcast, key, ctx, server)
    down = _message(world, "broadcast", down)
    answer = _trace(method.update, key, ctx, down, row, data)
    names = ("uplink", "client", "metrics")
    up, row, metrics = _several(world, "update", names, answer)
    up = _message(world, "update: uplink", up)
    row = _arrays(world, "update: client", row)
    _arrays(world, "update: metrics", metrics)
    summand = _trace(method.contribute, ctx, up)
    total = _arrays(world, "contribute", summand)
    for path, leaf in leaves(total):
        if leaf.dtype != jnp.float32:
            fail(world, "signature", f"summand{path} is {leaf.dtype}, expected float32")
    at = ServerContext(jnp.int32(0), jnp.int32(1))
    answer = _trace(method.aggregate, key, at, server, total)
    answer = _several(world, "aggregate", ("server", "metrics"), answer)
    _arrays(world, "aggregate", answer, or_numbers=True)
    _models(world, "deploy", _trace(method.deploy, key, server))
    lost = _arrays(world, "drop_uplink", _trace(method.drop_uplink, ctx, row, row))
    if jax.tree.flatten(lost) != jax.tree.flatten(row):
        fail(world, "signature", f"drop_uplink returned {lost}, expected {row}")
    if method.personalize is not None:
        models = _trace(method.personalize, key, server, row, info)
        _models(world, "personalize", models)


def calls(world: World) -> dict[str, tuple]:
    """Returns the shapes of the arguments of each function that the law calls."""
    if "calls" not in world.shared:
        law_signature(world)
    return world.shared["calls"]


def _watch(world: World) -> Algorithm:
    """Returns the method; an error names its function, and the world keeps calls."""
    world.shared["calls"] = {}

    def watch(name, function):
        def call(*args):
            world.shared["calls"][name] = jax.eval_shape(lambda *args: args, *args)
            try:
                return function(*args)
            except Exception as error:
                takes = re.search(rf"{name}: [^`]*`(\(.*?\))", Algorithm.__doc__)[1]
                said = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
                fail(world, "signature", f"{name}{takes} fails with {said}")

        return call

    called = {n: f for n, f in vars(world.algorithm).items() if callable(f)}
    return world.algorithm.replace(**{n: watch(n, f) for n, f in called.items()})


def _models(world: World, what: str, models) -> None:
    """Fails unless a function returned a dict of at least one model."""
    _dict_of(world, what, models, SparseModel)
    if not models:
        fail(world, "signature", f"{what} returned {{}}, expected a model")


def _trace(function: Callable, *args):
    """Traces a function; returns its result, even one that JAX would not accept."""
    kept = []

    def call(*args):
        kept.append(function(*args))

    jax.eval_shape(call, *args)
    return kept[0]


def _arrays(world: World, what: str, tree: PyTree, or_numbers=False) -> PyTree:
    """Returns the shapes of a tree of arrays, or fails."""
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
    """Returns the shapes of a message, or fails."""
    _dict_of(world, what, message, Packet)
    for name, packet in message.items():
        if name.startswith(("handed/", "model/")):
            fail(world, "signature", f"{what}[{name!r}]: this is the simulator's name")
        _arrays(world, f"{what}[{name!r}]: values", packet.values)
        _arrays(world, f"{what}[{name!r}]: mask", packet.mask)
    try:
        layout(message)
    except ValueError as error:
        fail(world, "signature", f"{what}: {error}")
    return _shapes(message)


def _dict_of(world: World, what: str, answer, kind: type) -> None:
    """Fails unless a result is a dict from names to values of a type."""
    wanted = f"expected a dict[str, {kind.__name__}]"
    if type(answer) is not dict:
        fail(world, "signature", f"{what} is {type(answer).__name__}, {wanted}")
    for name, value in answer.items():
        if type(value) is not kind:
            found = "an array" if isinstance(value, jax.Array) else type(value).__name__
            fail(world, "signature", f"{what}[{name!r}] is {found}, {wanted}")


def _several(world: World, what: str, names: tuple, answer) -> tuple:
    """Fails unless a result has a value for each name, the last of them a dict."""
    wanted = f"expected ({', '.join(names)})"
    plain = type(answer) in (tuple, list)  # a NamedTuple is one value
    if not plain or len(answer) != len(names):
        found = f"{len(answer)} values" if plain else type(answer).__name__
        fail(world, "signature", f"{what} returned {found}, {wanted}")
    if not isinstance(answer[-1], dict):
        found = type(answer[-1]).__name__
        fail(world, "signature", f"{what}: {names[-1]} is {found}, {wanted}")
    return answer


def law_pure(world: World) -> None:
    """Checks that functions use their arguments alone, no callbacks and no Refs.

    `jax.debug.print` is allowed.
    """
    for name, args in calls(world).items():
        program = jax.make_jaxpr(getattr(world.algorithm, name))(*args)
        for value in program.consts:
            if isinstance(value, jax.core.Tracer):
                why = "which another call computed and did not return"
                fail(world, "pure", f"{name} uses {jax.typeof(value)}, {why}")
        for equation in equations(program.jaxpr):
            if (called := equation.primitive.name) in IMPURE:
                why = "expected neither callbacks nor Refs"
                fail(world, "pure", f"{name} uses {called!r}, {why}")


def law_keys(world: World) -> None:
    """Checks that no function uses a random key twice, passes of the network included.

    `jax.random.clone` says that a key is used again on purpose.
    """
    algorithm = world.make(_use_keys(world.network))
    for name, args in calls(world).items():
        function = jax.jit(getattr(algorithm, name))
        try:
            with jax.debug_key_reuse(True):
                jax.eval_shape(function, *args)
        except jax.errors.KeyReuseError:
            fail(world, "keys", f"{name} uses a random key twice")


def _use_keys(model: Model) -> Model:
    """Returns the network, which uses the key of each pass."""

    def apply(params, stats, x, *, train, weight=None, key=None):
        if key is not None:
            jax.random.bits(key)
            key = jax.random.clone(key)
        return model.apply(params, stats, x, train=train, weight=weight, key=key)

    return model._replace(apply=apply)
