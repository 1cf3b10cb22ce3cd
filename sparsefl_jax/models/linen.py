"""Calls a user's linen module, and tests that padded samples have no effect.

A client's last batch is padded. Layers that mix samples, above all batch normalisation,
must leave the padding out.
"""

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import FlaxError

from sparsefl_jax.core.types import Array

# Arguments that are True in training, and those that are True in evaluation.
TRAINING = ("train", "training", "is_training")
NOT_TRAINING = ("deterministic", "use_running_average")


def arguments(module: nn.Module) -> Callable:
    """Returns a function that makes the keyword arguments of a module's `__call__`.

    Args:
      module: a linen module.

    Returns:
      `keywords(train, weight=None) -> dict`, those of the known arguments that the
      module has.

    Raises:
      ValueError: it is not a linen module, or has an unknown argument that has no
        default or whose default is a bool or a string.

    Example:
      >>> arguments(nn.BatchNorm())(True)
      {'use_running_average': False}
    """
    kind = type(module).__name__
    if not isinstance(module, nn.Module):
        raise ValueError(f"module is a {kind}, expected a module of flax.linen")
    first, *others = inspect.signature(module.__call__).parameters.values()
    if first.kind is first.VAR_POSITIONAL:  # passes its arguments on, as Sequential
        others = [p for p in others if p.kind is not p.VAR_KEYWORD]
    known = (*TRAINING, *NOT_TRAINING, "weight")
    for p in others:
        switch = isinstance(p.default, bool | str)
        needed = p.default is p.empty and p.kind is not p.VAR_POSITIONAL
        if p.name not in known and (needed or switch):
            raise ValueError(
                f"{kind}.__call__ has the unknown argument {p.name!r}, expected "
                f"only {', '.join(known)}"
            )
    names = {p.name for p in others}

    def keywords(train, weight=None):
        flags = dict.fromkeys(TRAINING, train) | dict.fromkeys(NOT_TRAINING, not train)
        return {k: v for k, v in (flags | {"weight": weight}).items() if k in names}

    return keywords


def _check_submodules(train: bool):
    """Returns a context that checks the training flags of calls to submodules.

    Raises:
      ValueError: within the context, a call leaves a flag at a default that is wrong.
    """
    flags = dict.fromkeys(TRAINING, train) | dict.fromkeys(NOT_TRAINING, not train)

    def check(call, args, kwargs, context):
        module = context.module
        if context.method_name == "__call__" and module.path:
            signature = inspect.signature(module.__call__)
            given = signature.bind_partial(*args, **kwargs).arguments
            for name in flags.keys() & signature.parameters.keys() - given.keys():
                default = signature.parameters[name].default
                if isinstance(default, bool) and default != flags[name]:
                    raise ValueError(
                        f"{type(module).__name__} {'/'.join(module.path)!r} is called "
                        f"without its argument {name!r}, which stays {default} in "
                        f"{'training' if train else 'evaluation'}"
                    )
        return call(*args, **kwargs)

    return nn.intercept_methods(check)


def without_padding(weight: Array | None) -> AbstractContextManager:
    """Returns a context in which linen's batch normalisation skips padded samples.

    Args:
      weight: [B], 0 for padded samples; None if there are none.

    Raises:
      ValueError: within the context, a BatchNorm's first axis is not the batch.
    """

    def masked(call, args, kwargs, context):
        norm, is_call = context.module, context.method_name == "__call__"
        if not isinstance(norm, nn.BatchNorm) or not is_call or weight is None:
            return call(*args, **kwargs)
        x = args[0] if args else kwargs["x"]
        if x.shape[:1] != weight.shape:
            raise ValueError(
                f"BatchNorm {'/'.join(norm.path)!r} normalises {list(x.shape)}, "
                f"expected the {weight.size} samples of a batch along the first axis, "
                "to leave out padded ones"
            )
        valid = weight > 0
        valid = valid | ~jnp.any(valid)  # of padding alone the statistics are unused
        valid = jnp.expand_dims(valid, range(1, x.ndim))
        given = kwargs.get("mask")
        mask = valid if given is None else valid & jnp.asarray(given, bool)
        return call(*args, **kwargs | {"mask": mask})

    return nn.intercept_methods(masked)


def try_out(module: nn.Module, init: Callable, apply: Callable, example: Any) -> None:
    """Runs two samples and a padded one, and checks that the padding has no effect.

    Args:
      module: the module, named in errors.
      init, apply: those of its `Model`.
      example: a batch [B, ...], or its shape and dtype.

    Raises:
      ValueError: the module fails, or a padded sample changes the logits of valid ones
        or the statistics. The message is one line.
    """
    kind, key = type(module).__name__, jax.random.key(0)
    shape = (3, *example.shape[1:])
    if jnp.issubdtype(example.dtype, jnp.integer):  # any embedding holds rows 0 and 1
        x = np.zeros(shape, np.int32)
        x[1].flat[::2] = 1
        padding = np.ones_like(x[2])
    else:
        x = np.random.default_rng(0).normal(size=shape)
        padding = 3 - 2 * x[2]
    other = np.stack([x[0], x[1], padding])
    weight = jnp.array([1, 1, 0], jnp.float32)

    def train_and_evaluate(variables, x):
        def outputs(train):
            keywords = {"weight": weight, "key": key if train else None}
            with _check_submodules(train):
                logits, stats = apply(*variables, x, train=train, **keywords)
            if logits.shape[:1] != (3,):
                raise ValueError(
                    f"{kind} turns 3 samples into {list(logits.shape)}, expected [3, C]"
                )
            return {"logits": logits[:2], "the statistics": stats}

        return outputs(True), outputs(False)

    run = jax.jit(
        train_and_evaluate, compiler_options={"xla_backend_optimization_level": 0}
    )
    try:
        variables = init(key)
        first, second = (run(variables, v.astype(example.dtype)) for v in (x, other))
    except FlaxError as error:
        reason = str(error).split("(https://")[0]
        raise ValueError(f"{kind}: {' '.join(reason.split())}") from error
    for mode, a, b in zip(("training", "evaluation"), first, second, strict=True):
        for output in a:
            if not jax.tree.all(jax.tree.map(_same, a[output], b[output])):
                raise ValueError(
                    f"in {mode} a padded sample changes {output} of {kind}: it mixes "
                    "samples; accept `weight` [B] in __call__ and leave out samples of "
                    "weight 0"
                )


def _same(a, b) -> bool:
    return bool(np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True))
