"""Makes pure functions of a user's nnx module.

`nnx.split` and `nnx.merge` turn a module into trees and back. Each call of the network
merges a new module, so nothing that a module writes outlives the call, except the
statistics of normalisation.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from flax.traverse_util import unflatten_dict

from sparsefl_jax.core.check import UserError, blaming
from sparsefl_jax.core.types import Key
from sparsefl_jax.models import trial

_KINDS = (nnx.Param, nnx.BatchStat, nnx.RngState)


def functions(make: Callable) -> tuple[str, Callable, Callable]:
    """Returns the pure functions of a module.

    Args:
      make: `(*, rngs) -> module`, draws the parameters.

    Returns:
      The name of the module's class, and `init` and `apply` as of a `Model`.

    Raises:
      ValueError: `make` is a module or returns none, or the module has variables of
        another kind or unknown arguments.
    """
    with blaming("make, expected a function of rngs that returns an nnx module"):
        module = nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0)))
        arguments = trial.arguments(module, ("rngs",))
    graph, *states, others = nnx.split(module, *_KINDS, ...)
    if unknown := {type(v).__name__ for _, v in nnx.to_flat_state(others)}:
        raise UserError(f"module has {sorted(unknown)}, expected Param and BatchStat")
    params, stats, streams = states

    def init(key):
        state = nnx.split(make(rngs=nnx.Rngs(key)), *_KINDS, ...)[1:3]
        return tuple(map(_nest, state))

    def apply(given_params, given_stats, x, *, train, weight=None, key=None):
        key = jax.random.key(0) if key is None else key  # recurrent cells draw zeros
        state = (
            _fill(params, given_params),
            _fill(stats, given_stats),
            _seed(streams, key),
        )
        called = nnx.merge(graph, *state)
        called.train() if train else called.eval()
        keywords = arguments(train, weight)
        if "rngs" in keywords:
            keywords["rngs"] = nnx.Rngs(key)
        _intercept(called, trial.keywords(train, weight, nnx.BatchNorm))
        logits = called(x, **keywords)
        new = _nest(nnx.split(called, *_KINDS, ...)[2]) if train else given_stats
        return logits.astype(jnp.float32), new

    return type(module).__name__, trial.compiled(init), apply


def _nest(state) -> dict:
    """Returns a state's arrays as nested dicts whose keys are strings."""
    flat = nnx.to_flat_state(state)
    return unflatten_dict({tuple(map(str, path)): v.get_value() for path, v in flat})


def _fill(state, tree: dict):
    """Returns a state with the arrays of nested dicts, the inverse of `_nest`."""
    filled = jax.tree.map(lambda v: v, state)  # a copy, as the next line changes it
    nnx.replace_by_pure_dict(filled, tree)
    return filled


def _seed(state, key: Key):
    """Returns the state of random streams, each with a key of its own."""
    leaves, tree = jax.tree.flatten(state)
    keys = jax.random.split(key, max(1, len(leaves)))

    def value(leaf, key):
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):  # a count
            return jnp.zeros(leaf.shape, leaf.dtype)
        return jax.random.split(key, leaf.shape) if leaf.shape else key

    return jax.tree.unflatten(tree, map(value, leaves, keys))


def _intercept(module, check: Callable) -> None:
    """Makes the calls of submodules go through a check of their keyword arguments."""
    for path, inner in nnx.iter_modules(module):
        if path and callable(inner):
            inner.checked_as = check, "/".join(map(str, path))
            inner.__class__ = _intercept_calls(type(inner))


@functools.cache
def _intercept_calls(kind: type) -> type:
    """Returns a subclass whose calls are checked."""
    call = kind.__call__

    @functools.wraps(call)
    def intercepted(self, *args, **kwargs):
        check, name = self.checked_as
        return call(self, *args, **check(self, name, args, kwargs))

    return type(kind.__name__, (kind,), {"__call__": intercepted})
