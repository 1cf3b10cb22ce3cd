"""The laws of single functions, which are traced alone: what they return and use."""

from functools import partial

import jax
import jax.numpy as jnp

from sparsefl_jax.core.types import Context, PyTree, ServerContext
from sparsefl_jax.models import Model
from sparsefl_jax.models.forms import equations
from sparsefl_jax.simulation.round_program import strong
from sparsefl_jax.testing import plain_loop
from sparsefl_jax.testing.compare import fail, leaves, rows
from sparsefl_jax.testing.small_world import World
from sparsefl_jax.wire.packets import Packet, layout

# Primitives of callbacks and of Refs.
IMPURE = {"pure_callback", "io_callback", "new_ref", "get", "swap", "addupdate"}


def law_signature(world: World) -> None:
    """Checks that the functions return what `core.algorithm` says, in arrays."""
    trace, key = partial(_trace, world), world.key
    info = rows(world.population.info, 0)
    ctx = Context(jnp.int32(0), jnp.int32(-1), info)
    at = ServerContext(jnp.int32(0), jnp.int32(1))
    data = plain_loop.batches_jit(world)(key, world.population, info)

    server = trace("init", key, world.model)
    received = _message(world, "handed", trace("send_once", server))
    row = trace("init_client", key, received, info)
    down = _message(world, "broadcast", trace("broadcast", key, ctx, server))
    answer = trace("update", key, ctx, down, row, data)
    up, row, _ = _unpack(world, "update", ("uplink", "client", "metrics"), answer)
    total = trace("contribute", ctx, _message(world, "update: uplink", up))
    for path, leaf in leaves(total):
        if leaf.dtype != jnp.float32:
            fail(world, "signature", f"summand{path} is {leaf.dtype}, expected float32")
    answer = trace("aggregate", key, at, server, total)
    _unpack(world, "aggregate", ("server", "metrics"), answer)
    lost = trace("drop_uplink", ctx, row, row)
    if jax.tree.flatten(lost) != jax.tree.flatten(row):
        fail(world, "signature", f"drop_uplink returned {lost}, expected {row}")
    deployed = {"deploy": trace("deploy", key, server)}
    if world.algorithm.personalize is not None:
        deployed["personalize"] = trace("personalize", key, server, row, info)
    for name, models in deployed.items():
        found = list(models.values()) if type(models) is dict else [models]
        kinds = {type(model).__name__ for model in found}
        if kinds != {"SparseModel"}:
            what = f"{name} returned {sorted(kinds)}"
            fail(world, "signature", f"{what}, expected a dict of SparseModel")


def calls(world: World) -> dict[str, tuple]:
    """Returns the shapes of the arguments of each function that the law calls."""
    if "calls" not in world.shared:
        law_signature(world)
    return world.shared["calls"]


def _trace(world: World, name: str, *args) -> PyTree:
    """Returns the shapes of what a function returns; the world keeps its arguments."""
    shapes = world.shared.setdefault("calls", {})
    shapes[name] = jax.eval_shape(lambda *args: args, *args)
    function = getattr(world.algorithm, name)
    try:
        return jax.eval_shape(lambda *args: strong(function(*args)), *args)
    except Exception as error:
        first, *_ = str(error).splitlines() or [""]
        fail(world, "signature", f"{name} fails with {type(error).__name__}: {first}")


def _message(world: World, what: str, message) -> dict[str, Packet]:
    """Returns a message, or fails."""
    try:
        names = layout(message)
    except ValueError as error:
        fail(world, "signature", f"{what}: {error}")
    for name in names:
        if name.startswith(("handed/", "model/")):
            fail(world, "signature", f"{what}[{name!r}]: this is the simulator's name")
    return message


def _unpack(world: World, what: str, names: tuple, answer) -> tuple:
    """Fails unless a result has a value for each name, the last of them a dict."""
    plain = type(answer) in (tuple, list)  # a NamedTuple is one value
    if not plain or len(answer) != len(names) or type(answer[-1]) is not dict:
        kinds = [type(value).__name__ for value in (answer if plain else [answer])]
        wanted = f"expected ({', '.join(names)}), the last a dict"
        fail(world, "signature", f"{what} returned ({', '.join(kinds)}), {wanted}")
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
