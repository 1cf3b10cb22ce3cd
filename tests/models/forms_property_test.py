"""Layers that a stranger may bring, drawn at random, against the same by plain XLA."""

import warnings
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from jax import lax

from sparsefl_jax.models.convolution import Lowering
from sparsefl_jax.models.forms import fast
from tests.networks import quick_jit

ONE_OF = st.sampled_from
QUIET = {
    "deadline": None,
    "derandomize": True,  # compiled programs are then found in JAX's cache
    "suppress_health_check": list(HealthCheck),
}
LOWERINGS = (
    *("auto", "canonical", "patches"),
    Lowering("patches", "patches", "patches", 1),  # one image at a time
)
MAPS = {"models": (0, None), "samples": (None, 0), "both": (0, 0)}


def each(axes, *values):
    """Draws a value for every axis."""
    return st.tuples(*[ONE_OF(values)] * axes)


@st.composite
def layers(draw):
    """Draws what convolutions and pools have in common."""
    axes = draw(ONE_OF((2, 2, 2, 1, 3)))
    same = st.just((1,) * axes)
    square = ONE_OF((1, 2, 3)).map(lambda size: (size,) * axes)
    low, high = draw(each(axes, 0, 0, 1, 2)), draw(each(axes, 0, 0, 1, 2))
    return {
        "size": draw(st.one_of(square, each(axes, 1, 2, 3))),
        "strides": draw(st.one_of(same, square, each(axes, 1, 2, 3))),
        "padding": tuple(zip(low, high, strict=True)),
        "shape": (draw(ONE_OF((2, 1, 3, 0))), *draw(each(axes, 5, 4, 6, 2))),
        "mapped": draw(ONE_OF((None, *MAPS))),
        "inside": draw(st.booleans()),  # whether a map is applied before `fast`
        "dtype": draw(ONE_OF(("float32", "bfloat16"))),
    }


@st.composite
def convolutions(draw):
    layer = draw(layers())
    axes = len(layer["size"])
    rates = st.one_of(st.just((1,) * axes), each(axes, 1, 2))
    groups, outputs = draw(ONE_OF((1, 1, 2, 3))), draw(ONE_OF((1, 3)))
    return layer | {
        "groups": groups,
        "inputs": draw(ONE_OF((1, 2))),
        "outputs": groups * outputs,
        "dilation": draw(rates),
        "spread": draw(rates),  # of images, as in a transposed convolution
        "lowering": draw(ONE_OF(LOWERINGS)),
    }


@st.composite
def pools(draw):
    kind = draw(ONE_OF(("maximum", "infinite", "average", "boolean")))
    mapped = draw(ONE_OF((None, "samples")))
    return draw(layers()) | {"kind": kind, "mapped": mapped}


def assert_the_same(run, layer, *arrays, lowering="auto"):
    """Compares values, gradients, shapes and dtypes."""

    def mapped(form):
        if layer["mapped"] is None:
            return form(run)
        axes = MAPS[layer["mapped"]][-len(arrays) :]
        maps = partial(jax.vmap, in_axes=axes)
        return form(maps(run)) if layer["inside"] else maps(form(run))

    form = partial(fast, lowering=lowering)
    with warnings.catch_warnings(action="ignore"):  # some stay as they are
        both = quick_jit(lambda *v: (mapped(lambda f: f)(*v), mapped(form)(*v)))
        want, got = jax.device_get(both(*arrays))
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        a, b = np.float32(a), np.float32(b)
        largest = np.max(np.abs(a), initial=0, where=np.isfinite(a))
        tolerance = 1e-5 if layer["dtype"] == "float32" else 0.03
        np.testing.assert_allclose(b, a, tolerance, tolerance * largest)


def uneven(y):
    """Weighs a result, so that no two entries have the same gradient."""
    y = y.astype(jnp.float32)
    return jnp.sum(y * jnp.cos(jnp.arange(y.size).reshape(y.shape)))


def copies(layer, name, *shape):
    """Adds an axis of two to what is mapped."""
    position = {"kernel": 0, "images": 1}[name]
    axes = MAPS.get(layer["mapped"])
    return (2, *shape) if axes and axes[position] == 0 else shape


def check_convolution(layer):
    rng, axes = np.random.default_rng(0), len(layer["size"])
    images = copies(layer, "images", *layer["shape"], layer["groups"] * layer["inputs"])
    kernel = copies(layer, "kernel", *layer["size"], layer["inputs"], layer["outputs"])
    letters = "DHW"[-axes:]

    def run(kernel, x):
        def loss(kernel, x):
            y = lax.conv_general_dilated(
                x,
                kernel,
                layer["strides"],
                layer["padding"],
                layer["spread"],
                layer["dilation"],
                (f"N{letters}C", f"{letters}IO", f"N{letters}C"),
                layer["groups"],
            )
            return uneven(y), y

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(kernel, x)

    arrays = (jnp.asarray(rng.normal(size=s), layer["dtype"]) for s in (kernel, images))
    assert_the_same(run, layer, *arrays, lowering=layer["lowering"])


def check_pool(layer):
    """Draws images of distinct numbers: in plain XLA the first of equals takes all."""
    kind, sides = layer["kind"], layer["shape"][1:]
    sizes = layer["size"], layer["strides"], layer["padding"]
    lead = copies(layer, "images", layer["shape"][0])
    count = int(np.prod(sides))
    order = np.argsort(np.random.default_rng(0).random((*lead, count, 2)), -2)
    x = np.float32(order - count // 2).reshape(*lead, *sides, 2)
    if kind == "infinite":
        x[x == x.max(initial=0)] = np.inf
        if not np.any(sizes[2]):  # plain XLA takes a border for a maximum of -inf
            x[x == x.min(initial=0)] = -np.inf

    def run(x):
        if kind == "boolean":
            along = [(1, *v, 1) for v in sizes[:2]]
            edges = (0, 0), *sizes[2], (0, 0)
            return lax.reduce_window(x > 0, np.False_, lax.max, *along, edges)
        pool = nn.avg_pool if kind == "average" else nn.max_pool
        y, vjp = jax.vjp(lambda x: pool(x, *sizes), x)
        g = jnp.cos(jnp.arange(y.size)).astype(y.dtype).reshape(y.shape)
        return y, vjp(g)

    assert_the_same(run, layer, jnp.asarray(x, layer["dtype"]))


ONES = (1, 1)
PAIRS = {
    **{"size": (3, 3), "strides": ONES, "padding": (ONES, ONES), "shape": (1, 5, 4)},
    **{"mapped": "both", "inside": True, "dtype": "float32", "lowering": "auto"},
    **{"groups": 1, "inputs": 2, "outputs": 3, "dilation": ONES, "spread": ONES},
}


@settings(max_examples=10, **QUIET)
@given(convolutions())
@example(PAIRS)
@example(PAIRS | {"shape": (0, 5, 4), "mapped": None})
def test_convolutions(layer):
    check_convolution(layer)


@settings(max_examples=10, **QUIET)
@given(pools())
def test_pools(layer):
    check_pool(layer)
