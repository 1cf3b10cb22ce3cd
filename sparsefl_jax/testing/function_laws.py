"""The laws of single functions: each of them is traced alone, and none runs."""

from collections.abc import Iterator

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr

from sparsefl_jax.models import Model
from sparsefl_jax.testing.compare import ContractError, fail
from sparsefl_jax.testing.signature import calls
from sparsefl_jax.testing.small_world import World

# Primitives of callbacks and of Refs.
IMPURE = {"pure_callback", "io_callback", "new_ref", "get", "swap", "addupdate"}


def law_pure(world: World) -> None:
    """Checks that functions use their arguments alone, no callbacks and no Refs.

    `jax.debug.print` is allowed.
    """
    for name, args in calls(world).items():
        program = jax.make_jaxpr(getattr(world.algorithm, name))(*args)
        for what in _impurities(program):
            fail(world, "pure", f"{name} uses {what}")


def _impurities(program: Jaxpr | ClosedJaxpr) -> Iterator[str]:
    """Yields what a program uses that is neither an argument nor a constant."""
    for value in getattr(program, "consts", ()):
        if isinstance(value, jax.core.Tracer):
            kind = jax.typeof(value)
            yield f"{kind}, which another call computed and did not return"
    for equation in program.eqns:
        if (called := equation.primitive.name) in IMPURE:
            yield f"{called!r}, expected neither callbacks nor Refs"
        for inner in jax.tree.leaves(list(equation.params.values())):
            if isinstance(inner, Jaxpr | ClosedJaxpr):
                yield from _impurities(inner)


def law_keys(world: World) -> None:
    """Checks that no function uses a random key twice, passes of the network included.

    `jax.random.clone` says that a key is used again on purpose.
    """
    algorithm = world.make(_drawing(world.network))
    for name, args in calls(world).items():
        function = jax.jit(getattr(algorithm, name))
        try:
            with jax.debug_key_reuse(True):
                jax.eval_shape(function, *args)
        except jax.errors.KeyReuseError as error:
            what = f"law 'keys', {world.name}: {name} uses a random key twice"
            raise ContractError(what) from error


def _drawing(model: Model) -> Model:
    """Returns the network, which uses the key of each pass."""

    def apply(params, stats, x, *, train, weight=None, key=None):
        if key is not None:
            jax.random.bits(key)
            key = jax.random.clone(key)
        return model.apply(params, stats, x, train=train, weight=weight, key=key)

    return model._replace(apply=apply)
