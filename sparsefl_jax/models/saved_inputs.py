"""The inputs that layers save for the gradients of their kernels.

A layer y = x w needs x again for the gradient of w. A hook replaces the x that is
saved, by a sparse one for example; the output and the gradient of x stay exact. Source:
Raihan and Aamodt, "Sparse Weight Activation Training" (SWAT), NeurIPS 2020,
https://arxiv.org/abs/2001.01969.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import Array, PyTree

_AFFINE = (nn.Conv, nn.Dense, nn.DenseGeneral)  # in their input


class _Hooked(NamedTuple):
    hook: Callable
    paths: frozenset[str]
    weight: Array | None
    seen: set[str]


_ACTIVE: ContextVar[_Hooked | None] = ContextVar("saved_inputs", default=None)


def affine(path: str, layer: Callable, params: PyTree, x: Array) -> Array:
    """Applies a layer of a network that `Model.with_inputs` may hook.

    Linen's `Conv`, `Dense` and `DenseGeneral` need no such call; a network that is
    written as a function calls it for its layers.

    Args:
      path: of the kernel in the network's parameters.
      layer: `(params, x) -> y`, affine in x and linear in the kernel; it may use
        nothing that is traced but its arguments.
      params: the layer's parameters, a dict whose key `kernel` holds the kernel.
      x: [B, ...].

    Returns:
      y, [B, ...].

    Raises:
      ValueError: a hook is active, and x has another first axis than the batch.

    Example:
      >>> dense = lambda params, x: x @ params["kernel"]
      >>> affine("fc/kernel", dense, {"kernel": jnp.ones((3, 2))}, jnp.ones((1, 3)))
      Array([[3., 3.]], dtype=float32)
    """
    active = _ACTIVE.get()
    if active is None or path not in active.paths:
        return layer(params, x)
    weight = active.weight
    weight = jnp.ones(x.shape[:1], jnp.float32) if weight is None else weight
    if weight.shape != x.shape[:1]:
        raise UserError(f"{path} reads {x.shape}, expected [{weight.size}, ...]")
    active.seen.add(path)
    saved = lax.stop_gradient(active.hook(x, params["kernel"], weight))
    token = _ACTIVE.set(None)  # a linen module calls itself here
    try:
        return _split_saved(layer)(params, x, saved)
    finally:
        _ACTIVE.reset(token)


def _split_saved(layer: Callable) -> Callable:
    """Returns `(params, x, saved) -> layer(params, x)`, differentiated at `saved`."""

    @jax.custom_vjp
    def apply(params, x, saved):
        return layer(params, x)

    def forward(params, x, saved):
        return layer(params, x), (params, saved)

    def backward(residual, g):
        # The gradient of an affine function does not depend on where it is taken.
        of_params, of_input = jax.vjp(layer, *residual)[1](g)
        return of_params, of_input, jnp.zeros_like(residual[1])

    apply.defvjp(forward, backward)
    return apply


def _intercept(call, args, kwargs, context):
    """Sends a linen layer through `affine`."""
    module, active = context.module, _ACTIVE.get()
    path = "/".join((*module.path, "kernel"))
    is_layer = isinstance(module, _AFFINE) and context.method_name == "__call__"
    if active is None or path not in active.paths or not (is_layer and args):
        return call(*args, **kwargs)
    x, *others = args
    unbound = module.clone(parent=None)

    def layer(params, x):
        return unbound.apply({"params": params}, x, *others, **kwargs)

    return affine(path, layer, module.variables["params"], x)


@contextmanager
def hooked(
    hook: Callable, paths: Iterable[str], weight: Array | None
) -> Iterator[None]:
    """Returns a context in which layers save what a hook returns.

    Args:
      hook: as `Model.with_inputs` takes it.
      paths: the kernels whose layers are hooked.
      weight: [B], 0 for padded samples; None if there are none.

    Raises:
      ValueError: at its end, a kernel of `paths` was not in a layer that can be hooked.
    """
    active = _Hooked(hook, frozenset(paths), weight, set())
    token = _ACTIVE.set(active)
    try:
        with nn.intercept_methods(_intercept):
            yield
    finally:
        _ACTIVE.reset(token)
    if missing := sorted(active.paths - active.seen):
        raise UserError(
            f"no hook sees the inputs of {', '.join(missing)}, expected kernels of "
            "linen's Conv or Dense, or of saved_inputs.affine"
        )
