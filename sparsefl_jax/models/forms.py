"""Replaces the convolutions and pools of a traced program by forms that are fast.

Inside a loop, XLA:CPU has no fast gradient convolution, and its gradient of a maximum
over windows scatters. So `fast` traces a function to its equations, after whatever was
differentiated in it, and evaluates them with each convolution computed in the form that
`convolution.choose` gives for its layer and pass, and each pool by slices. A gradient
of a convolution is a convolution with other dimension numbers, by which its pass is
known. What is not known stays as it is.

`fast` has to be applied to the whole program, outside of all derivatives.
"""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from sparsefl_jax.core.check import check
from sparsefl_jax.core.types import Array
from sparsefl_jax.models import convolution, lowerings, pooling, scans, shifts
from sparsefl_jax.models.convolution import Layer, Lowering

# Dimension numbers of the passes of a layer with images NHWC and a kernel HWIO.
IMAGES = (0, 3, 1, 2)
FORWARD = (IMAGES, (3, 2, 0, 1), IMAGES)
INPUT_GRAD = (IMAGES, (2, 3, 0, 1), IMAGES)
WEIGHT_GRAD = ((3, 0, 1, 2), (3, 0, 1, 2), (2, 3, 0, 1))


def fast(function: Callable, lowering: str | Lowering = "auto") -> Callable:
    """Returns a function whose convolutions and pools are computed in fast forms.

    A convolution is replaced if it has the layouts and groups of `flax.linen.Conv` over
    two spatial axes, one floating dtype in and out, and the default precision; maximum
    pools of floating dtype over two spatial axes, if there is no dilation. Equal maxima
    of their windows share the gradient equally.

    Args:
      function: of arrays; any derivatives are taken inside it.
      lowering: `auto`, a name in `lowerings.NAMES` for all passes, or a `Lowering`.

    Returns:
      A function of the same arguments. Its results may differ by rounding.

    Raises:
      ValueError: the name is unknown, or a Winograd form is not for kernels of this
        size.

    Example:
      >>> import flax.linen as nn
      >>> conv, x = nn.Conv(2, (3, 3)), jnp.ones((1, 5, 5, 3))
      >>> params = conv.init(jax.random.key(0), x)
      >>> gradient = fast(jax.grad(lambda p: conv.apply(p, x).sum()))(params)
      >>> gradient["params"]["bias"].tolist()
      [25.0, 25.0]
    """
    if isinstance(lowering, str) and lowering != "auto":
        check("lowering", lowering, ("auto", *lowerings.NAMES))
        lowering = Lowering(lowering, lowering, lowering)

    def evaluated(*args):
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
        if not _has_any(closed.jaxpr):
            return function(*args)
        _warn_of_unknown(closed.jaxpr)
        outputs = _evaluate(
            closed.jaxpr, closed.consts, jax.tree.leaves(args), lowering
        )
        return jax.tree.unflatten(jax.tree.structure(shape), outputs)

    return evaluated


def _has_any(jaxpr: core.Jaxpr) -> bool:
    """Returns whether a program has an equation that may have a form."""
    return any(e.primitive.name in _FORMS for e in equations(jaxpr))


def _is_empty(eqn) -> bool:
    return any(0 in v.aval.shape for v in (*eqn.invars, *eqn.outvars))


def _inner_has_any(eqn) -> bool:
    return any(map(_has_any, core.jaxprs_in_params(eqn.params)))


def _warn_of_unknown(jaxpr: core.Jaxpr) -> None:
    """Names the first convolution that has no form; the same text is shown once."""
    unknown = (
        e
        for e in equations(jaxpr)
        if e.primitive.name == "conv_general_dilated" and not _is_known(e)
    )
    if first := next(unknown, None):
        kernel, images = first.invars[1].aval, first.invars[0].aval
        warnings.warn(
            f"a convolution with a kernel of {kernel.dtype} {list(kernel.shape)} on "
            f"{images.dtype} stays as it is, which may be slow on CPU: its layout, "
            "groups, precision or dtype are not those of flax.linen.Conv",
            stacklevel=3,
        )


def equations(jaxpr: core.Jaxpr) -> Iterator:
    """Yields the equations of a program and of the programs in it."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in core.jaxprs_in_params(eqn.params):
            yield from equations(inner)


class _Scope(NamedTuple):
    """What an equation's form may read of the program around it."""

    lowering: str | Lowering
    maxima: dict  # of the pools so far, which their gradients read
    input_grad: Callable  # from the variable of g, before its turn; or None


def _evaluate(jaxpr: core.Jaxpr, consts, args, lowering) -> list:
    """Evaluates a program, each equation in its form where it has one."""
    env = dict(zip(jaxpr.constvars, consts, strict=True))
    env |= zip(jaxpr.invars, args, strict=True)
    by_g = {e.invars[0]: e for e in jaxpr.eqns if _is_input_grad(e)}

    def input_grad(g):
        eqn = by_g.get(g)
        if eqn is None or eqn.invars[1] not in env:
            return None
        if eqn.outvars[0] not in env:
            env[eqn.outvars[0]] = _as_it_is(jaxpr, eqn, env)[0]
        return env[eqn.outvars[0]]

    def read(v):
        return v.val if isinstance(v, core.Literal) else env[v]

    scope = _Scope(lowering, {}, input_grad)
    for eqn in jaxpr.eqns:
        if eqn.outvars and eqn.outvars[0] in env:
            continue  # computed before its turn
        inputs, name, outputs = list(map(read, eqn.invars)), eqn.primitive.name, None
        with jax.named_scope(str(eqn.source_info.name_stack)):
            if name in _FORMS and not _is_empty(eqn):
                outputs = _FORMS[name](eqn, *inputs, scope)
            elif name in _CONTROL and _inner_has_any(eqn):
                outputs = _CONTROL[name](eqn, inputs, lowering)
        if outputs is None:
            outputs = _as_it_is(jaxpr, eqn, env)
        elif not eqn.primitive.multiple_results:
            outputs = [outputs]
        env |= zip(eqn.outvars, outputs, strict=True)
    return list(map(read, jaxpr.outvars))


def _as_it_is(jaxpr: core.Jaxpr, eqn, env: dict) -> list:
    """Evaluates one equation of a program, with its name in profiles."""
    used = list({v: None for v in eqn.invars if not isinstance(v, core.Literal)})
    parts = {"constvars": [], "invars": used, "outvars": eqn.outvars, "eqns": [eqn]}
    alone = core.ClosedJaxpr(jaxpr.replace(**parts), ())
    return core.jaxpr_as_fun(alone)(*(env[v] for v in used))


def _of(closed, lowering) -> Callable:
    """Returns a closed program as a function of arrays, with its forms replaced."""
    return lambda *args: _evaluate(closed.jaxpr, closed.consts, args, lowering)


def _call(eqn, inputs, lowering):
    """Evaluates the program of a call in its place."""
    (closed,) = (v for v in eqn.params.values() if isinstance(v, core.ClosedJaxpr))
    return _of(closed, lowering)(*inputs)


def _remat(eqn, inputs, lowering):
    params = eqn.params
    run = partial(_evaluate, params["jaxpr"], (), lowering=lowering)
    kept = {name: params[name] for name in ("prevent_cse", "policy")}
    return jax.checkpoint(lambda *args: run(args), **kept)(*inputs)


def _scan(eqn, inputs, lowering):
    params, carried = eqn.params, scans.carry(eqn)
    run = _of(params["jaxpr"], lowering)
    consts, carry = inputs[: carried.start], inputs[carried]

    def body(carry, x):
        outputs = run(*consts, *carry, *x)
        return outputs[: len(carry)], outputs[len(carry) :]

    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    carry, ys = lax.scan(body, carry, inputs[carried.stop :], **options)
    return [*carry, *ys]


def _while(eqn, inputs, lowering):
    params = eqn.params
    first, second = params["cond_nconsts"], params["body_nconsts"]
    of_cond, of_body = inputs[:first], inputs[first : first + second]
    cond, body = (_of(params[n], lowering) for n in ("cond_jaxpr", "body_jaxpr"))
    return lax.while_loop(
        lambda carry: cond(*of_cond, *carry)[0],
        lambda carry: body(*of_body, *carry),
        inputs[first + second :],
    )


def _cond(eqn, inputs, lowering):
    index, *operands = inputs
    branches = [_of(branch, lowering) for branch in eqn.params["branches"]]
    return lax.switch(index, branches, *operands)


_CONTROL = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    **dict.fromkeys(("checkpoint", "remat2"), _remat),  # by version of JAX
    **dict.fromkeys(
        ("jit", "closed_call", "custom_jvp_call", "custom_vjp_call"), _call
    ),
}


def _is_known(eqn) -> bool:
    """Returns whether a convolution is a pass of a layer like `flax.linen.Conv`."""
    left, right, out = (v.aval for v in (*eqn.invars, *eqn.outvars))
    sharding = eqn.params.get("out_sharding")  # inside `shard_map`: of no axis
    standard = jax.config.jax_default_matmul_precision
    standard = None if standard is None else (lax.Precision(standard),) * 2
    default = eqn.params["precision"] in (None, standard)
    default &= not any(sharding.spec if sharding else ())
    default &= left.dtype == right.dtype == out.dtype
    default &= jnp.issubdtype(out.dtype, jnp.floating)
    name = _PASSES.get(_specs(eqn))
    # Mapped over weights and samples together, a pass has groups of the other kind.
    other = "feature_group_count" if name == "weight_grad" else "batch_group_count"
    return name is not None and default and eqn.params[other] == 1


def _specs(eqn) -> tuple:
    numbers = eqn.params["dimension_numbers"]
    return numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec


def _convolution(eqn, left: Array, right: Array, scope: _Scope) -> Array | None:
    """Computes a pass of a layer in a fast form; None where it stays as it is."""
    if not _is_known(eqn):
        return None
    p, out, name = eqn.params, eqn.outvars[0].aval, _PASSES[_specs(eqn)]
    layer, edges = _layer(name, p, left.shape, right.shape, out.shape)
    lowering = scope.lowering
    if layer is None:
        return _by_shifts(name, p, left, right, out.shape, lowering)
    if lowering == "auto":
        lowering = convolution.choose(layer, convolution.platform(), left.dtype.name)
    lowering = convolution.available(layer, lowering)
    form = getattr(lowering, name)
    if form == "plain":
        return None
    at, run = (layer.stride, layer.pad), getattr(lowerings, name)
    border = [(0, 0), *edges, (0, 0)]
    parts = layer.batch // lowering.images if lowering.images else 1
    if name == "forward":
        return _mapped(lambda x: run(form, x, right, *at), parts, jnp.pad(left, border))
    if name == "weight_grad":
        pair = jnp.pad(left, border), right
        dw = _mapped(lambda x, g: run(form, x, g, out, *at)[None], parts, *pair)
        return dw.sum(0, dtype=jnp.float32).astype(out.dtype) if parts > 1 else dw[0]
    kernel = jnp.flip(right, (0, 1))  # XLA removes this and the flip before it
    bordered = jax.ShapeDtypeStruct((layer.batch // parts, *layer[1:4]), left.dtype)
    dx = _mapped(lambda g: run(form, bordered, g, kernel, *at), parts, left)
    rows, columns = (
        slice(a, a + n) for (a, _), n in zip(edges, out.shape[1:3], strict=True)
    )
    return dx[:, rows, columns]


_PASSES = {FORWARD: "forward", INPUT_GRAD: "input_grad", WEIGHT_GRAD: "weight_grad"}


def _mapped(run: Callable, parts: int, *images: Array) -> Array:
    """Applies a pass to one part of the batch after another, which stays in cache."""
    if parts == 1:
        return run(*images)
    split = [v.reshape(parts, -1, *v.shape[1:]) for v in images]
    y = lax.map(lambda part: run(*part), split)
    return y.reshape(-1, *y.shape[2:])


def _layer(name: str, p: dict, left, right, out) -> tuple[Layer | None, list]:
    """Returns the layer of a pass, and the borders to add to its images before.

    The layer is None where the kernel or the stride is not square, or there are groups
    or dilations.
    """
    ones, stride = (1, 1), p["window_strides"]
    dilated = p["lhs_dilation"], p["rhs_dilation"]
    images, kernel, g = left, right, out
    low = [a for a, _ in p["padding"]]
    if name == "input_grad":
        stride, dilated = p["lhs_dilation"], (stride, p["rhs_dilation"])
        images, g = out, left
        low = [k - 1 - a for k, a in zip(kernel[:2], low, strict=True)]
    if name == "weight_grad":
        stride, dilated = p["rhs_dilation"], (p["lhs_dilation"], stride)
        kernel, g = out, right
    square = kernel[0] == kernel[1] and stride[0] == stride[1] and min(low) >= 0
    grouped = p["feature_group_count"] > 1 or p["batch_group_count"] > 1
    if not square or grouped or dilated != (ones, ones):
        return None, []
    size, step, pad = kernel[0], stride[0], low[0]
    # What the last window reads beyond the images; negative: what none reads.
    beyond = [
        (h - 1) * step + size - n - a
        for h, n, a in zip(g[1:3], images[1:3], low, strict=True)
    ]
    edges = [(0, 0), (0, 0)]
    if low[0] != low[1] or not all(pad - step < b <= pad for b in beyond):
        edges, pad = [(a, max(b, 0)) for a, b in zip(low, beyond, strict=True)], 0
    height, width = (n + sum(e) for n, e in zip(images[1:3], edges, strict=True))
    layer = images[0], height, width, images[3], kernel[3], size, step, pad
    return Layer(*layer), edges


def _by_shifts(name: str, p: dict, left, right, out, lowering) -> Array | None:
    """Computes a pass of any layer from shifted views of its images."""
    form = convolution.platform() if lowering == "auto" else getattr(lowering, name)
    if form not in ("cpu", *lowerings.NAMES[1:]):
        return None
    sides = zip(p["padding"], p["lhs_dilation"], strict=True)
    border = [(0, 0, 0), *((*edge, d - 1) for edge, d in sides), (0, 0, 0)]
    left = lax.pad(left, jnp.zeros((), left.dtype), border)
    steps = p["window_strides"], p["rhs_dilation"]
    if name == "weight_grad":
        return shifts.weight_grad(left, right, out, p["batch_group_count"], *steps)
    kernel = right.swapaxes(2, 3) if name == "input_grad" else right
    return shifts.convolve(left, kernel, out, p["feature_group_count"], *steps)


def _windows(eqn) -> pooling.Windows | None:
    """Returns the windows of a pool of [..., H, W, C]; None of any other pool."""
    p, x = eqn.params, eqn.invars[-1].aval
    names = "window_dimensions", "window_strides", "padding"
    along = list(zip(*(p[name] for name in names), strict=True))  # each axis
    other = {*along[:-3], *along[-1:]}
    dilated = [d for n in ("base_dilation", "window_dilation") for d in p.get(n, ())]
    flat = x.ndim >= 4 and other == {(1, 1, (0, 0))} and set(dilated) <= {1}
    if not flat or not jnp.issubdtype(x.dtype, jnp.floating):
        return None
    return pooling.Windows(*zip(*along[-3:-1], strict=True))


def _images(x: Array) -> Array:
    """Returns [..., H, W, C] as [B, H, W, C], such as those of several models."""
    return x.reshape(-1, *x.shape[-3:])


def _maximum(eqn, x: Array, scope: _Scope) -> Array | None:
    windows = _windows(eqn)
    if windows is None:
        return None
    y, scope.maxima[eqn.invars[0], windows] = pooling.maximum(_images(x), windows)
    return y.reshape(eqn.outvars[0].aval.shape)


def _maximum_grad(eqn, g: Array, x: Array, scope: _Scope) -> Array | None:
    windows = _windows(eqn)
    if windows is None or eqn.params["select_prim"].name != "ge":
        return None
    known = scope.maxima.get((eqn.invars[1], windows))
    dx = pooling.maximum_grad(_images(x), _images(g), known, windows)
    return dx.reshape(x.shape)


def _is_input_grad(eqn) -> bool:
    """Returns whether an equation is that of g and a dense kernel [I, O]."""
    if eqn.primitive.name != "dot_general" or eqn.invars[1].aval.ndim != 2:
        return False
    last = eqn.invars[0].aval.ndim - 1
    return eqn.params["dimension_numbers"] == (((last,), (1,)), ((), ()))


def _weight_grad(eqn, g: Array, x: Array, scope: _Scope) -> Array | None:
    """Computes on CPU the gradient of a dense kernel after the one of its input.

    So XLA can update the kernel in place. XLA:CPU removes barriers before it decides
    that, so the order is that of an addition.
    """
    (left, right), batch = eqn.params["dimension_numbers"]
    dense = batch == ((), ()) and left == right == tuple(range(g.ndim - 1))
    if not dense or convolution.platform() != "cpu":
        return None
    dx = scope.input_grad(eqn.invars[0])
    if dx is None or dx.size == 0:
        return None
    kept = ("dimension_numbers", "precision", "preferred_element_type")
    zero = jnp.nan_to_num(0.0 * dx.reshape(-1)[0])  # also where dx is not finite
    g = g + zero.astype(g.dtype)
    return lax.dot_general(g, x, **{name: eqn.params[name] for name in kept})


def _long_sum(eqn, x: Array, scope: _Scope) -> Array | None:
    """Adds numbers of half precision, as those of a bias' gradient, in float32."""
    if x.dtype not in (jnp.bfloat16, jnp.float16):
        return None
    return jnp.sum(x, eqn.params["axes"], dtype=jnp.float32).astype(x.dtype)


_FORMS = {
    "reduce_sum": _long_sum,
    "dot_general": _weight_grad,
    "conv_general_dilated": _convolution,
    "reduce_window_max": _maximum,
    "select_and_scatter_add": _maximum_grad,
}
