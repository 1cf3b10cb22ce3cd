"""Sets whether a user's module trains, and tests that padding has no effect.

A client's last batch is padded. Layers that mix samples, above all batch normalisation,
must leave the padding out.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import Array
from sparsefl_jax.system import hardware

# Arguments that are True in training, and those that are True in evaluation.
TRAINING = ("train", "training", "is_training")
NOT_TRAINING = ("deterministic", "use_running_average")


def flags(train: bool) -> dict[str, bool]:
    """Returns the value of every argument that says whether a module trains."""
    given = {name: train for name in TRAINING}
    return given | {name: not train for name in NOT_TRAINING}


def arguments(module: Any, further: tuple[str, ...] = ()) -> Callable:
    """Returns a function that makes the keyword arguments of a module's `__call__`.

    Args:
      module: a linen or an nnx module.
      further: names that are known too; they become None.

    Returns:
      `given(train, weight=None) -> dict`, those of the known arguments that the
      module has.

    Raises:
      ValueError: it has an unknown argument that has no default or whose default is a
        bool or a string.

    Example:
      >>> import flax.linen as nn
      >>> arguments(nn.BatchNorm())(True)
      {'use_running_average': False}
    """
    kind = type(module).__name__
    first, *others = inspect.signature(module.__call__).parameters.values()
    if first.kind is first.VAR_POSITIONAL:  # passes its arguments on, as Sequential
        others = [p for p in others if p.kind is not p.VAR_KEYWORD]
    known = (*TRAINING, *NOT_TRAINING, "weight", *further)
    for p in others:
        switch = isinstance(p.default, bool | str)
        needed = p.default is p.empty and p.kind is not p.VAR_POSITIONAL
        if p.name not in known and (needed or switch):
            raise UserError(
                f"{kind}.__call__ takes {p.name!r}, expected only {', '.join(known)}"
            )
    names = {p.name for p in others}

    def given(train, weight=None):
        known = flags(train) | dict.fromkeys(further) | {"weight": weight}
        return {k: v for k, v in known.items() if k in names}

    return given


def compiled(init: Callable) -> Callable:
    """Returns an `init` that is compiled when it runs by itself.

    jit drops the forward pass that linen's init runs. The rest runs once, and compiling
    it with optimisation takes ten times as long as without.
    """
    alone = jax.jit(init, compiler_options=hardware.UNOPTIMIZED)
    return lambda key: (init if isinstance(key, jax.core.Tracer) else alone)(key)


def keywords(train: bool, weight: Array | None, norm: type) -> Callable:
    """Returns what makes the keyword arguments of the calls of submodules.

    Args:
      train: whether the network trains.
      weight: [B], 0 for padded samples; None if there are none.
      norm: the class of batch normalisation, which gets a mask without padding.

    Returns:
      `(module, path, args, kwargs) -> kwargs` of a call of a submodule at a path. It
      raises ValueError if the call leaves a training flag at a default that is wrong,
      or batch normalisation does not have the batch along the first axis.
    """

    def checked(module, path, args, kwargs):
        name = f"{type(module).__name__} {path!r}"
        signature = inspect.signature(module.__call__)
        given = signature.bind_partial(*args, **kwargs).arguments
        for flag, value in flags(train).items():
            if flag in signature.parameters and flag not in given:
                default = signature.parameters[flag].default
                if isinstance(default, bool) and default != value:
                    mode = "training" if train else "evaluation"
                    what = f"without its argument {flag!r}, which stays {default}"
                    raise UserError(f"{name} is called {what} in {mode}")
        if weight is None or not isinstance(module, norm):
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
            return {"logits": logits[:2], "the statistics": stats}

        return outputs(True), outputs(False)

    run = jax.jit(train_and_evaluate, compiler_options=hardware.UNOPTIMIZED)
    variables = model.init(key)
    first, second = (run(variables, v.astype(example.dtype)) for v in (x, other))
    for mode, a, b in zip(("training", "evaluation"), first, second, strict=True):
        for output in a:
            if not jax.tree.all(jax.tree.map(_same, a[output], b[output])):
                raise UserError(
                    f"in {mode} a padded sample changes {output}: it mixes samples; "
                    "accept `weight` [B] in __call__ and leave out samples of weight 0"
                )


_same = partial(np.allclose, rtol=1e-4, atol=1e-5, equal_nan=True)
