"""What a user's linen module is told, and a trial that padded samples change nothing.

A client's last batch is filled up with padding. Whatever mixes samples, batch
normalisation above all, must leave that out.
"""

import inspect
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import FlaxError

from sparsefl_jax.core.types import Array, PyTree

# Names that say whether a module trains, and those that say the opposite.
TRAINING = ("train", "training", "is_training")
NOT_TRAINING = ("deterministic", "use_running_average")


def arguments(module: nn.Module) -> Callable:
    """What a module's `__call__` is told beside the batch.

    Args:
      module: a linen module.

    Returns:
      `told(train, weight=None) -> dict` of the arguments that it has.

    Raises:
      ValueError: it is no linen module, or has an argument that must be told, or is
        a switch, and is not known.

    Example:
      >>> arguments(nn.BatchNorm())(True)
      {'use_running_average': False}
    """
    kind = type(module).__name__
    if not isinstance(module, nn.Module):
        raise ValueError(f"module is a {kind}, expected a module of flax.linen")
    first, *others = inspect.signature(module.__call__).parameters.values()
    if first.kind is first.VAR_POSITIONAL:  # hands on what it is given, as Sequential
        others = [p for p in others if p.kind is not p.VAR_KEYWORD]
    known = (*TRAINING, *NOT_TRAINING, "weight")
    for p in others:
        switch = isinstance(p.default, bool | str)
        needed = p.default is p.empty and p.kind is not p.VAR_POSITIONAL
        if p.name not in known and (needed or switch):
            raise ValueError(
                f"{kind}.__call__ has the argument {p.name!r}, which nothing here "
                f"tells; known are {', '.join(known)}"
            )
    names = {p.name for p in others}

    def told(train, weight=None):
        flags = dict.fromkeys(TRAINING, train) | dict.fromkeys(NOT_TRAINING, not train)
        return {k: v for k, v in (flags | {"weight": weight}).items() if k in names}

    return told


def _told_within(train: bool):
    """A context that refuses a module within another that is not told if it trains.

    Raises:
      ValueError: in it, where such an argument is left at its default.
    """
    flags = dict.fromkeys(TRAINING, train) | dict.fromkeys(NOT_TRAINING, not train)

    def asked(call, args, kwargs, context):
        module = context.module
        if context.method_name == "__call__" and module.path:
            taken = inspect.signature(module.__call__)
            given = taken.bind_partial(*args, **kwargs).arguments
            for name in flags.keys() & taken.parameters.keys() - given.keys():
                left = taken.parameters[name].default
                if isinstance(left, bool) and left != flags[name]:
                    raise ValueError(
                        f"{type(module).__name__} {'/'.join(module.path)!r} is called "
                        f"without its argument {name!r}, which stays {left} in "
                        f"{'training' if train else 'evaluation'}"
                    )
        return call(*args, **kwargs)

    return nn.intercept_methods(asked)


def without_padding(weight: Array | None):
    """A context in which linen's batch normalisation sees valid samples alone.

    Args:
      weight: [B], 0 for padded samples; None: there are none.

    Raises:
      ValueError: in it, where something else than the batch is normalised.
    """

    def masked(call, args, kwargs, context):
        norm, called = context.module, context.method_name == "__call__"
        if not isinstance(norm, nn.BatchNorm) or not called or weight is None:
            return call(*args, **kwargs)
        x = args[0] if args else kwargs["x"]
        if x.shape[:1] != weight.shape:
            raise ValueError(
                f"BatchNorm {'/'.join(norm.path)!r} normalises {list(x.shape)}, "
                f"expected the {weight.size} samples of a batch along the first axis, "
                "of which padded ones can be left out"
            )
        valid = jnp.expand_dims(_some(weight), range(1, x.ndim))
        given = kwargs.get("mask")
        mask = valid if given is None else valid & jnp.asarray(given, bool)
        return call(*args, **kwargs | {"mask": mask})

    return nn.intercept_methods(masked)


def _some(weight: Array) -> Array:
    """Valid samples; all where there are none, whose statistics are thrown away."""
    valid = weight > 0
    return valid | ~jnp.any(valid)


def keep_unless_valid(weight: Array | None, new: PyTree, old: PyTree) -> PyTree:
    """The new statistics, or the old ones after a batch of padding alone."""
    if weight is None:
        return new
    return jax.tree.map(lambda n, o: jnp.where(jnp.any(weight > 0), n, o), new, old)


def try_out(module: nn.Module, init: Callable, apply: Callable, example) -> None:
    """Runs two samples and a padded one, whose content must change nothing.

    Args:
      module: for its name.
      init, apply: of its `Model`.
      example: one sample [1, ...] by shape.

    Raises:
      ValueError: in one line; the module fails, or padding reaches valid samples or
        the statistics.
    """
    kind, key = type(module).__name__, jax.random.key(0)
    shape = (3, *example.shape[1:])
    if jnp.issubdtype(example.dtype, jnp.integer):  # 0 and 1 are in every table
        x = np.zeros(shape, np.int32)
        x[1].flat[::2] = 1
        padding = np.ones_like(x[2])
    else:
        x = np.random.default_rng(0).normal(size=shape)
        padding = 3 - 2 * x[2]
    other = np.stack([x[0], x[1], padding])
    weight = jnp.array([1, 1, 0], jnp.float32)

    def both(variables, x):
        def one(train):
            how = {"train": train, "weight": weight, "key": key if train else None}
            with _told_within(train):
                logits, stats = apply(*variables, x, **how)
            if logits.shape[:1] != (3,):
                raise ValueError(
                    f"{kind} turns 3 samples into {list(logits.shape)}, expected [3, C]"
                )
            return {"logits": logits[:2], "the statistics": stats}

        return one(True), one(False)

    quick = {"xla_backend_optimization_level": 0}
    run = jax.jit(both, compiler_options=quick)
    try:
        variables = init(key)
        first, second = (run(variables, v.astype(example.dtype)) for v in (x, other))
    except FlaxError as error:
        told = str(error).split("(https://")[0]
        raise ValueError(f"{kind}: {' '.join(told.split())}") from error
    for train, a, b in zip(("training", "evaluation"), first, second, strict=True):
        for what in a:
            if not jax.tree.all(jax.tree.map(_same, a[what], b[what])):
                raise ValueError(
                    f"in {train} a padded sample changes {what} of {kind}: it mixes "
                    "samples; take `weight` [B] in __call__, 0 for padding, and leave "
                    "those out"
                )


def _same(a, b) -> bool:
    return bool(np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True))
