"""Makes pure functions of users' modules, and tests that padding has no effect.

A client's last batch is padded. Layers that mix samples, above all batch normalisation,
must leave the padding out.

`nnx.split` and `nnx.merge` turn an nnx module into trees and back. Each call of the
network merges a new module, so nothing that a module writes outlives the call, except
the statistics of normalisation.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.traverse_util import unflatten_dict

from sparsefl_jax.core.check import UserError, blame
from sparsefl_jax.core.types import Array, Key
from sparsefl_jax.system import hardware

# Arguments that are True in training, and those that are True in evaluation.
TRAINING = ("train", "training", "is_training")
NOT_TRAINING = ("deterministic", "use_running_average")
_KINDS = (nnx.Param, nnx.BatchStat, nnx.RngState)


def _one_array(logits: Any) -> Array:
    """Returns what a module returns as float32; refuses several outputs."""
    if not isinstance(logits, jax.Array):
        kind = type(logits).__name__
        raise UserError(f"it returns a {kind}, expected one array [B, ...]")
    return logits.astype(jnp.float32)


def of_linen(
    module: nn.Module, example: Array | jax.ShapeDtypeStruct
) -> tuple[str, Callable, Callable]:
    """Returns the pure functions of a linen module.

    Args:
      module: takes a batch like `example`.
      example: a batch [B, ...], or its shape and dtype.

    Returns:
      The name of the module's class, and `init` and `apply` as of a `Model`.

    Raises:
      ValueError: it is no module, or has unknown arguments; by `init`, it has other
        collections than 'params' and 'batch_stats'.
    """
    kind = type(module).__name__
    if not isinstance(module, nn.Module):
        raise UserError(f"module is a {kind}, expected a module of flax.linen")
    given = arguments(module)

    def init(key):
        x = jnp.zeros((1, *example.shape[1:]), example.dtype)
        found = module.init(key, x, **given(False))
        if unknown := set(found) - {"params", "batch_stats"}:
            allowed = "only 'params' and 'batch_stats' are supported"
            raise UserError(f"module has the collections {sorted(unknown)}; {allowed}")
        return found.get("params", {}), found.get("batch_stats", {})

    def apply(params, stats, x, *, train, weight=None, key=None):
        variables = {"params": params} | ({"batch_stats": stats} if stats else {})
        options = given(train, weight)
        options["rngs"] = None if key is None else {"dropout": key}
        options["mutable"] = ["batch_stats"] if train and stats else []
        check = keywords(train, weight)

        def checked(call, args, kwargs, context):
            if context.method_name == "__call__":
                path = "/".join(context.module.path)
                kwargs = check(context.module, path, args, kwargs)
            return call(*args, **kwargs)

        with nn.intercept_methods(checked):
            logits, changed = module.apply(variables, x, **options)
        return _one_array(logits), changed.get("batch_stats", stats)

    return kind, compiled(init), apply


def of_nnx(make: Callable) -> tuple[str, Callable, Callable]:
    """Returns the pure functions of an nnx module.

    Args:
      make: `(*, rngs) -> module`, draws the parameters.

    Returns:
      The name of the module's class, and `init` and `apply` as of a `Model`.

    Raises:
      ValueError: `make` is a module or returns none, or the module has variables of
        another kind or unknown arguments.
    """
    with blame("make, expected a function of rngs that returns an nnx module"):
        module = nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0)))
        given = arguments(module)
    graph, *states, others = nnx.split(module, *_KINDS, ...)
    if unknown := {type(v).__name__ for _, v in nnx.to_flat_state(others)}:
        raise UserError(f"module has {sorted(unknown)}, expected Param and BatchStat")
    params, stats, streams = states

    def init(key):
        state = nnx.state(make(rngs=nnx.Rngs(key)), *_KINDS)
        return _nest(state[0]), _nest(state[1])

    def apply(given_params, given_stats, x, *, train, weight=None, key=None):
        key = jax.random.key(0) if key is None else key  # recurrent cells draw zeros
        filled = _fill(params, given_params), _fill(stats, given_stats)
        called = nnx.merge(graph, *filled, _seed(streams, key))
        called.train() if train else called.eval()
        _intercept(called, keywords(train, weight))
        logits = called(x, **given(train, weight, nnx.Rngs(key)))
        new = _nest(nnx.state(called, nnx.BatchStat)) if train else given_stats
        return _one_array(logits), new

    return type(module).__name__, compiled(init), apply


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


def flags(train: bool) -> dict[str, bool]:
    """Returns the value of every argument that says whether a module trains."""
    given = {name: train for name in TRAINING}
    return given | {name: not train for name in NOT_TRAINING}


def arguments(module: Any) -> Callable:
    """Returns a function that makes the keyword arguments of a module's `__call__`.

    Args:
      module: a linen or an nnx module.

    Returns:
      `given(train, weight=None, rngs=None) -> dict`, those of the known arguments that
      the module has.

    Raises:
      ValueError: it has an unknown argument that has no default or whose default is a
        bool or a string.

    Example:
      >>> arguments(nn.BatchNorm())(True)
      {'use_running_average': False}
    """
    kind = type(module).__name__
    first, *others = inspect.signature(module.__call__).parameters.values()
    if first.kind is first.VAR_POSITIONAL:  # passes its arguments on, as Sequential
        others = [p for p in others if p.kind is not p.VAR_KEYWORD]
    known = (*TRAINING, *NOT_TRAINING, "weight", "rngs")
    for p in others:
        switch = isinstance(p.default, bool | str)
        needed = p.default is p.empty and p.kind is not p.VAR_POSITIONAL
        if p.name not in known and (needed or switch):
            raise UserError(
                f"{kind}.__call__ takes {p.name!r}, expected only {', '.join(known)}"
            )
    names = {p.name for p in others}

    def given(train, weight=None, rngs=None):
        known = flags(train) | {"weight": weight, "rngs": rngs}
        return {k: v for k, v in known.items() if k in names}

    return given


def compiled(init: Callable) -> Callable:
    """Returns an `init` that is compiled when it runs by itself.

    jit drops the forward pass that linen's init runs. The rest runs once, and compiling
    it with optimisation takes ten times as long as without.
    """
    alone = jax.jit(init, compiler_options=hardware.UNOPTIMIZED)
    return lambda key: (init if isinstance(key, jax.core.Tracer) else alone)(key)


def keywords(train: bool, weight: Array | None) -> Callable:
    """Returns what makes the keyword arguments of the calls of submodules.

    Args:
      train: whether the network trains.
      weight: [B], 0 for padded samples; None if there are none.

    Returns:
      `(module, path, args, kwargs) -> kwargs` of a call of a submodule at a path: batch
      normalisation gets a mask without padding. It raises ValueError if the call leaves
      a training flag at a default that is wrong, or batch normalisation does not have
      the batch along the first axis.
    """

    def checked(module, path, args, kwargs):
        name = f"{type(module).__name__} {path!r}"
        signature = inspect.signature(module.__call__)
        given = signature.bind_partial(*args, **kwargs).arguments
        defaults = {k: p.default for k, p in signature.parameters.items()}
        for flag, value in flags(train).items():
            if flag not in given and defaults.get(flag) is (not value):
                mode = "training" if train else "evaluation"
                what = f"without its argument {flag!r}, which stays {not value}"
                raise UserError(f"{name} is called {what} in {mode}")
        if weight is None or not isinstance(module, (nn.BatchNorm, nnx.BatchNorm)):
            return kwargs
        x, mask = args[0] if args else kwargs["x"], kwargs.get("mask")
        if x.shape[:1] != weight.shape:
            what = f"{x.shape}, expected [{weight.size}, ...]"
            raise UserError(f"{name} normalises {what}")
        valid = weight > 0
        valid = valid | ~jnp.any(valid)  # of padding alone the statistics are unused
        valid = jnp.expand_dims(valid, range(1, x.ndim))
        valid = valid if mask is None else valid & jnp.asarray(mask, bool)
        return kwargs | {"mask": valid}

    return checked


def try_out(model: Any, example: Any) -> None:
    """Runs two samples and a padded one, and checks that the padding has no effect.

    Args:
      model: the module's `Model`.
      example: a batch [B, ...], or its shape and dtype.

    Raises:
      ValueError: the module fails, or a padded sample changes the logits of valid ones
        or the statistics. The message is one line.
    """
    key, shape = jax.random.key(0), (3, *example.shape[1:])
    if model.tokens:  # any embedding holds rows 0 and 1
        x = np.zeros(shape, np.int32)
        x[1].flat[::2] = 1
        padding = 1 - x[2]
    else:
        x = np.random.default_rng(0).normal(size=shape)
        padding = 3 - 2 * x[2]
    other = np.stack([x[0], x[1], padding])
    weight = jnp.array([1, 1, 0], jnp.float32)

    def train_and_evaluate(variables, x):
        def outputs(train):
            options = {"weight": weight, "key": key if train else None}
            logits, stats = model.apply(*variables, x, train=train, **options)
            if logits.shape[:1] != (3,):
                raise UserError(f"3 samples become {logits.shape}, expected [3, C]")
            return logits[:2], stats

        return outputs(True), outputs(False)

    run = jax.jit(train_and_evaluate, compiler_options=hardware.UNOPTIMIZED)
    variables = model.init(key)
    first, second = (run(variables, v.astype(example.dtype)) for v in (x, other))
    for mode, a, b in zip(("training", "evaluation"), first, second, strict=True):
        if not jax.tree.all(jax.tree.map(_same, a, b)):
            raise UserError(
                f"in {mode} a padded sample changes logits or statistics; accept "
                "`weight` [B] in __call__ and leave out samples of weight 0"
            )


_same = functools.partial(np.allclose, rtol=1e-4, atol=1e-5, equal_nan=True)
