"""Layers that a stranger may bring, drawn at random, against the same by plain XLA."""

import warnings
from functools import partial

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
MAPS = {None: (None, None), "models": (0, None), "samples": (None, 0), "both": (0, 0)}


def each(axes, *values):
    """Draws a value for every axis."""
    return st.tuples(*[ONE_OF(values)] * axes)


@st.composite
def convolutions(draw):
    axes = draw(ONE_OF((2, 2, 2, 1, 3)))
    same = st.just((1,) * axes)
    square = ONE_OF((1, 2, 3)).map(lambda size: (size,) * axes)
    low, high = draw(each(axes, 0, 0, 1, 2)), draw(each(axes, 0, 0, 1, 2))
    rates = st.one_of(st.just((1,) * axes), each(axes, 1, 2))
    groups, outputs = draw(ONE_OF((1, 1, 2, 3))), draw(ONE_OF((1, 3)))
    return {
        "size": draw(st.one_of(square, each(axes, 1, 2, 3))),
        "strides": draw(st.one_of(same, square, each(axes, 1, 2, 3))),
        "padding": tuple(zip(low, high, strict=True)),
        "shape": (draw(ONE_OF((2, 1, 3, 0))), *draw(each(axes, 5, 4, 6, 2))),
        "mapped": draw(ONE_OF(tuple(MAPS))),
        "inside": draw(st.booleans()),  # whether a map is applied before `fast`
        "dtype": draw(ONE_OF(("float32", "bfloat16"))),
        "groups": groups,
        "inputs": draw(ONE_OF((1, 2))),
        "outputs": groups * outputs,
        "dilation": draw(rates),
        "spread": draw(rates),  # of images, as in a transposed convolution
        "lowering": draw(ONE_OF(LOWERINGS)),
    }


def convolution(layer):
    """Returns the value and the gradients of a sum with a weight for every entry."""
    letters = "DHW"[-len(layer["size"]) :]
    numbers = (f"N{letters}C", f"{letters}IO", f"N{letters}C"), layer["groups"]
    rates = layer["spread"], layer["dilation"]

    def loss(kernel, x):
        steps = layer["strides"], layer["padding"]
        y = lax.conv_general_dilated(x, kernel, *steps, *rates, *numbers)
        weights = jnp.cos(jnp.arange(y.size).reshape(y.shape))
        return jnp.sum(weights * y.astype(jnp.float32)), y

    return jax.value_and_grad(loss, (0, 1), has_aux=True)


def mapped(layer, form):
    """Returns a layer in a form, which is applied around its map or inside of it."""
    run, maps = convolution(layer), partial(jax.vmap, in_axes=MAPS[layer["mapped"]])
    if layer["mapped"] is None:
        return form(run)
    return form(maps(run)) if layer["inside"] else maps(form(run))


def arrays(layer):
    """Draws a kernel and images, two of what is mapped."""
    rng, groups = np.random.default_rng(0), layer["groups"]
    shapes = (
        (*layer["size"], layer["inputs"], layer["outputs"]),
        (*layer["shape"], groups * layer["inputs"]),
    )
    for axis, shape in zip(MAPS[layer["mapped"]], shapes, strict=True):
        shape = shape if axis is None else (2, *shape)
        yield jnp.asarray(rng.normal(size=shape), layer["dtype"])


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
def test_a_layer_equals_that_of_plain_xla(layer):
    form = partial(fast, lowering=layer["lowering"])
    with warnings.catch_warnings(action="ignore"):  # some stay as they are
        pair = mapped(layer, lambda f: f), mapped(layer, form)
        both = quick_jit(lambda *v: tuple(run(*v) for run in pair))
        want, got = jax.device_get(both(*arrays(layer)))
    tolerance = 1e-5 if layer["dtype"] == "float32" else 0.03
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        a, b = np.float32(a), np.float32(b)
        largest = np.max(np.abs(a), initial=0)
        np.testing.assert_allclose(b, a, tolerance, tolerance * largest)
