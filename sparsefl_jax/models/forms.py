"""Replaces the convolutions and pools of a traced program by forms that are fast.

Inside a loop, XLA:CPU has no fast gradient convolution, and its gradient of a maximum
over windows scatters. So `fast` traces a function to its equations, after whatever was
differentiated in it, and evaluates them with each convolution computed in the form that
`convolution.choose` gives for its layer and pass, and each pool by slices. A gradient
of a convolution is a convolution with other dimension numbers, by which its pass is
known. What is not known stays as it is, and so does what `jax.checkpoint` computes
again, and a program without convolutions, pools and sums of half precision.

`fast` has to be applied to the whole program, outside of all derivatives.
"""

import math
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from sparsefl_jax.core.types import Array
from sparsefl_jax.models import convolution, lowerings, pooling
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
    pools of floating dtype over two spatial axes, whose windows have no borders and
    stand side by side or one step apart. Equal maxima of these windows share the
    gradient equally.

    Args:
      function: of arrays; any derivatives are taken inside it.
      lowering: `auto`, a name in `lowerings.NAMES` for all passes, or a `Lowering`.

    Returns:
      A function of the same arguments. Its results may differ by rounding.

    Example:
      >>> import flax.linen as nn
      >>> conv, x = nn.Conv(2, (3, 3)), jnp.ones((1, 5, 5, 3))
      >>> params = conv.init(jax.random.key(0), x)
      >>> gradient = fast(jax.grad(lambda p: conv.apply(p, x).sum()))(params)
      >>> gradient["params"]["bias"].tolist()
      [25.0, 25.0]
    """
    if isinstance(lowering, str) and lowering != "auto":
        lowering = Lowering(lowering, lowering, lowering)

    def evaluated(*args):
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
        if not _has_any(closed.jaxpr):
            return function(*args)
        outputs = _evaluate(closed, jax.tree.leaves(args), lowering)
        return jax.tree.unflatten(jax.tree.structure(shape), outputs)

    return evaluated


def equations(jaxpr: core.Jaxpr) -> Iterator:
    """Yields the equations of a program and of the programs in it."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in core.jaxprs_in_params(eqn.params):
            yield from equations(inner)


def _has_any(jaxpr: core.Jaxpr) -> bool:
    """Returns whether a program has an equation that may have a form."""
    return any(map(_form, equations(jaxpr)))


def _form(eqn) -> Callable | None:
    """Returns the function that computes an equation's form, if it may have one."""
    form = _FORMS.get(eqn.primitive.name)
    if form is None or _is_empty(eqn):
        return None
    return form if form is not _long_sum or eqn.invars[0].aval.dtype in _HALF else None


def _is_empty(eqn) -> bool:
    return any(0 in v.aval.shape for v in (*eqn.invars, *eqn.outvars))


def _evaluate(closed: core.ClosedJaxpr, args, lowering) -> list:
    """Evaluates a program, each equation in its form where it has one."""
    jaxpr = closed.jaxpr
    env = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    env |= zip(jaxpr.invars, args, strict=True)
    input_grads = {e.invars[0]: e for e in jaxpr.eqns if _is_input_grad(e)}

    def read(v):
        return v.val if isinstance(v, core.Literal) else env[v]

    def run(eqn):
        if eqn.outvars and eqn.outvars[0] in env:
            return  # computed before its turn
        inputs, outputs = list(map(read, eqn.invars)), None
        other = input_grads.get(eqn.invars[0]) if _is_weight_grad(eqn) else None
        if other and other.invars[1] in env:
            run(other)
            inputs[0] = _after(env[other.outvars[0]], inputs[0])
        with jax.named_scope(str(eqn.source_info.name_stack)):
            if form := _form(eqn):
                outputs = form(eqn, *inputs, lowering)
        if outputs is None:
            outputs = _as_it_is(jaxpr, eqn, inputs, lowering)
        env.update(zip(eqn.outvars, outputs, strict=True))

    for eqn in jaxpr.eqns:
        run(eqn)
    return list(map(read, jaxpr.outvars))


def _as_it_is(jaxpr: core.Jaxpr, eqn, inputs, lowering) -> list:
    """Evaluates one equation of a program, and in their forms those inside it."""
    if any(map(_has_any, core.jaxprs_in_params(eqn.params))):
        params = {k: _with_forms(v, lowering) for k, v in eqn.params.items()}
        eqn = eqn.replace(params=params)
    pairs = zip(eqn.invars, inputs, strict=True)
    given = {v: x for v, x in pairs if not isinstance(v, core.Literal)}
    parts = {"constvars": [], "invars": [*given], "outvars": eqn.outvars, "eqns": [eqn]}
    alone = core.ClosedJaxpr(jaxpr.replace(**parts), ())
    return core.jaxpr_as_fun(alone)(*given.values())


def _with_forms(value, lowering):
    """Returns a parameter of an equation whose programs have their forms."""
    if isinstance(value, tuple):
        return tuple(_with_forms(v, lowering) for v in value)
    if not isinstance(value, core.ClosedJaxpr):
        return value
    run = jax.make_jaxpr(lambda *args: _evaluate(value, args, lowering))
    return run(*value.in_avals)


def _pass_of(eqn) -> str | None:
    """Returns which pass of a layer like `flax.linen.Conv` a convolution is, if any."""
    left, right, out = (v.aval for v in (*eqn.invars, *eqn.outvars))
    standard = jax.config.jax_default_matmul_precision
    standard = None if standard is None else (lax.Precision(standard),) * 2
    default = eqn.params["precision"] in (None, standard)
    default &= left.dtype == right.dtype == out.dtype
    default &= jnp.issubdtype(out.dtype, jnp.floating)
    name = _PASSES.get(eqn.params["dimension_numbers"])
    # Mapped over weights and samples together, a pass has groups of the other kind.
    other = "feature_group_count" if name == "weight_grad" else "batch_group_count"
    return name if default and eqn.params[other] == 1 else None


def _convolution(eqn, left: Array, right: Array, lowering) -> list | None:
    """Computes a pass of a layer in a fast form; None where it stays as it is."""
    name = _pass_of(eqn)
    if name is None:
        return None
    p, out, platform = eqn.params, eqn.outvars[0].aval, convolution.platform()
    layer, edges = _layer(name, p, left.shape, right.shape, out.shape)
    if layer is None:
        auto = lowering == "auto"
        shifted = platform == "cpu" if auto else getattr(lowering, name) != "plain"
        return [_by_shifts(name, p, left, right, out.shape)] if shifted else None
    if lowering == "auto":
        lowering = convolution.choose(layer, platform, left.dtype.name)
    form = getattr(lowering, name)
    if form == "plain":
        return None
    at, run = (layer.stride, layer.pad), getattr(lowerings, name)
    border = [(0, 0), *edges, (0, 0)]
    parts = layer.batch // math.gcd(layer.batch, lowering.images)
    if name == "forward":
        part = lambda x: run(form, x, right, *at)  # noqa: E731
        return [_map_parts(part, parts, jnp.pad(left, border))]
    if name == "weight_grad":
        part = lambda x, g: run(form, x, g, out, *at)[None]  # noqa: E731
        dw = _map_parts(part, parts, jnp.pad(left, border), right)
        return [dw.sum(0, dtype=jnp.float32).astype(out.dtype) if parts > 1 else dw[0]]
    kernel = jnp.flip(right, (0, 1))  # XLA removes this and the flip before it
    bordered = jax.ShapeDtypeStruct((layer.batch // parts, *layer[1:4]), left.dtype)
    dx = _map_parts(lambda g: run(form, bordered, g, kernel, *at), parts, left)
    (top, _), (left, _) = edges
    return [dx[:, top : top + out.shape[1], left : left + out.shape[2]]]


_PASSES = {FORWARD: "forward", INPUT_GRAD: "input_grad", WEIGHT_GRAD: "weight_grad"}


def _map_parts(run: Callable, parts: int, *images: Array) -> Array:
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
    alike = low[0] == low[1] < size
    if not alike or not all(pad - step < b <= pad for b in beyond):
        edges, pad = [(a, max(b, 0)) for a, b in zip(low, beyond, strict=True)], 0
    height, width = (n + sum(e) for n, e in zip(images[1:3], edges, strict=True))
    layer = images[0], height, width, images[3], kernel[3], size, step, pad
    return Layer(*layer), edges


def _by_shifts(name: str, p: dict, left: Array, right: Array, out) -> Array:
    """Computes a pass of any layer from shifted views of its images."""
    sides = zip(p["padding"], p["lhs_dilation"], strict=True)
    border = [(0, 0, 0), *((*edge, d - 1) for edge, d in sides), (0, 0, 0)]
    left = lax.pad(left, jnp.zeros((), left.dtype), border)
    steps = p["window_strides"], p["rhs_dilation"]
    if name == "weight_grad":
        groups = p["batch_group_count"]
        return lowerings.weight_grad_any(left, right, out, groups, *steps)
    kernel = right.swapaxes(2, 3) if name == "input_grad" else right
    return lowerings.convolve_any(left, kernel, out, p["feature_group_count"], *steps)


def _windows(eqn) -> tuple | None:
    """Returns the size of a pool's windows of [..., H, W, C], and whether they slide.

    It is None of any other pool, and where windows overlap otherwise or have borders.
    """
    p, x = eqn.params, eqn.invars[-1].aval
    size, strides = p["window_dimensions"], p["window_strides"]
    dilated = [d for n in ("base_dilation", "window_dilation") for d in p.get(n, ())]
    flat = x.ndim >= 4 and {*size[:-3], *strides[:-3], size[-1], *dilated} == {1}
    known = strides in (size, (1,) * x.ndim) and not any(map(any, p["padding"]))
    if not flat or not known or not jnp.issubdtype(x.dtype, jnp.floating):
        return None
    return size[-3:-1], strides != size


def _images(x: Array) -> Array:
    """Returns [..., H, W, C] as [B, H, W, C], such as those of several models."""
    return x.reshape(-1, *x.shape[-3:])


def _maximum(eqn, x: Array, lowering) -> list | None:
    windows = _windows(eqn)
    if windows is None:
        return None
    y = pooling.maximum(_images(x), *windows)
    return [y.reshape(eqn.outvars[0].aval.shape)]


def _maximum_grad(eqn, g: Array, x: Array, lowering) -> list | None:
    windows = _windows(eqn)
    if windows is None or eqn.params["select_prim"].name != "ge":
        return None
    dx = pooling.maximum_grad(_images(x), _images(g), *windows)
    return [dx.reshape(x.shape)]


def _long_sum(eqn, x: Array, lowering) -> list:
    """Adds numbers of half precision, as those of a bias' gradient, in float32."""
    return [jnp.sum(x, eqn.params["axes"], dtype=jnp.float32).astype(x.dtype)]


_FORMS = {
    "reduce_sum": _long_sum,
    "conv_general_dilated": _convolution,
    "reduce_window_max": _maximum,
    "select_and_scatter_add": _maximum_grad,
}
_HALF = (jnp.bfloat16, jnp.float16)


def _is_input_grad(eqn) -> bool:
    """Returns whether an equation is that of g and a dense kernel [I, O]."""
    if eqn.primitive.name != "dot_general" or _is_empty(eqn):
        return False
    last = eqn.invars[0].aval.ndim - 1
    return eqn.params["dimension_numbers"] == (((last,), (1,)), ((), ()))


def _is_weight_grad(eqn) -> bool:
    """Returns whether an equation is that of g and a dense layer's input, on CPU."""
    if eqn.primitive.name != "dot_general" or convolution.platform() != "cpu":
        return False
    every = tuple(range(eqn.invars[0].aval.ndim - 1))
    return eqn.params["dimension_numbers"] == ((every, every), ((), ()))


def _after(first: Array, g: Array) -> Array:
    """Returns g, which is computed after another array.

    If the gradient of a dense kernel follows the one of the layer's input, XLA can
    update the kernel in place. XLA:CPU removes barriers before it decides that, so the
    order is that of an addition.
    """
    zero = jnp.nan_to_num(0.0 * first.reshape(-1)[0])  # also where it is not finite
    return g + zero.astype(g.dtype)
