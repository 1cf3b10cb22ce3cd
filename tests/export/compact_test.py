"""Networks without their pruned filters have the outputs of the whole ones."""

from functools import partial

import jax
import numpy as np
import pytest

from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.export.compact import compact
from sparsefl_jax.models import build
from sparsefl_jax.sparsity import masks
from tests.networks import normal, num_entries, quick_jit
from tests.refusals import refused

pytestmark = pytest.mark.slow


def trained(model, seed=0):
    """Draws weights, biases, scales and statistics as after training."""
    rng = np.random.default_rng(seed)

    def leaf(path, shape):
        word, draw = path[-1].key, rng.normal(size=shape.shape).astype(np.float32)
        if word == "kernel":
            return draw / np.float32(np.prod(shape.shape[:-1]) ** 0.5)
        if word in ("scale", "var", "batch_var"):
            return np.float32(0.2) + np.abs(draw)
        return np.float32(0.5) * draw

    shapes = jax.eval_shape(model.init, jax.random.key(0))
    params, stats = jax.tree_util.tree_map_with_path(leaf, shapes)
    mask = jax.tree.map(lambda p: np.ones(p.shape, bool), params)
    return SparseModel(params, mask, stats)


def prune(sparse, density, only="", but="nothing"):
    """Keeps each filter of the named kernels with a probability."""
    rng = np.random.default_rng(0)

    def leaf(path, mask):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        keep = rng.random(mask.shape[-1]) < density
        chosen = name.endswith("kernel") and only in name and but not in name
        return mask & keep if chosen else mask

    return sparse._replace(mask=jax.tree_util.tree_map_with_path(leaf, sparse.mask))


def outputs(model, sparse, x):
    apply = quick_jit(partial(model.apply, train=False))
    return apply(masks.apply(*sparse[:2]), sparse.stats, x)[0]


def check(sparse, name, shape, **kwargs):
    """Checks equal outputs, and returns the smaller network and its weights."""
    x = normal(1, 4, *shape)
    model, small = compact(sparse, name, 10, shape, **kwargs)
    want = outputs(build(name, 10, shape, **kwargs), sparse, x)
    np.testing.assert_allclose(outputs(model, small, x), want, atol=1e-5, rtol=1e-5)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    for own, expected in zip((small.params, small.stats), shapes, strict=True):
        assert jax.tree.map(np.shape, own) == jax.tree.map(np.shape, expected)
        assert all(v.dtype == np.float32 for v in jax.tree.leaves(own))
    for value, mask in zip(*map(jax.tree.leaves, small[:2]), strict=True):
        assert mask.dtype == bool and not value[~mask].any()
    return model, small


def start(name, shape, **kwargs):
    return trained(build(name, 10, shape, **kwargs))


def alive(sparse, *names):
    """Counts the remaining filters of each layer from the masks alone."""
    kernels = [sparse.mask[name]["kernel"] for name in names]
    return [int(k.reshape(-1, k.shape[-1]).any(0).sum()) for k in kernels]


CIFAR = (32, 32, 3)


@pytest.mark.parametrize(
    "norm, density", [("batch", 0.1), ("batch", 0.6), ("static", 0.4), (None, 0.3)]
)
def test_conv4(norm, density):
    sparse = prune(start("conv4", CIFAR, norm=norm), density, but="fc3")
    names = ("conv1", "conv2", "conv3", "conv4", "fc1", "fc2")
    # One channel for the constants that normalisation makes positive.
    a, b, c, d, e, f = (n + (norm is not None) for n in alive(sparse, *names))
    _, small = check(sparse, "conv4", CIFAR, norm=norm)
    convs = 25 * (3 * a + a * b + b * c + c * d)
    dense = 4 * d * e + e * f + 10 * f
    normed = 2 * (a + b + c + d + e + f) * (norm is not None)
    assert num_entries(small.params) == convs + dense + normed
    assert num_entries(small.stats) == normed


@pytest.mark.parametrize(
    "variant, base, density",
    [("postactivation", 8, 0.1), ("preactivation", 16, 0.6)],
)
def test_resnet_shrinks_inside_its_blocks(variant, base, density):
    shape, kwargs = (8, 8, 3), {"base": base, "variant": variant}
    sparse = prune(start("resnet18", shape, **kwargs), density)
    _, small = check(sparse, "resnet18", shape, **kwargs)
    saved = 0
    for stage in range(4):
        outside, before = base * 2**stage, base * 2 ** max(stage - 1, 0)
        for block, inputs in enumerate((before, outside)):
            name = f"layer{stage + 1}_block{block}"
            kept = int(sparse.mask[name]["conv1"]["kernel"].any((0, 1, 2)).sum())
            gone = outside - kept - (kept < outside)
            saved += gone * (9 * inputs + 9 * outside + 2)
            assert small.params[name]["conv2"]["kernel"].shape[-1] == outside
    assert saved > 0
    assert num_entries(small.params) == num_entries(sparse.params) - saved
    assert num_entries(small.stats) < num_entries(sparse.stats)


SMALL = {
    "mnistnet": ((14, 14, 1), {"softmax_output": True}),
    "ic": ((14, 14, 1), {}),
    "simple_cnn": ((8, 8, 3), {}),
    "small_cnn": ((8, 8, 3), {}),
    "vgg16": ((32, 32, 3), {"widths": (4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 5, 6)}),
}


@pytest.mark.parametrize("name", SMALL)
def test_padding_biases_and_overlapping_windows(name):
    shape, kwargs = SMALL[name]
    sparse = prune(start(name, shape, **kwargs), 0.5)
    _, small = check(sparse, name, shape, **kwargs)
    assert num_entries(small.params) < 0.6 * num_entries(sparse.params)


@pytest.mark.parametrize("layer", ["conv1", "fc1", "fc2"])
def test_a_layer_of_which_nothing_is_left(layer):
    shape = (16, 16, 1)
    sparse = prune(start("lenet5_caffe", shape), 0.0, only=layer)
    _, small = check(sparse, "lenet5_caffe", shape)
    kernel = small.params[layer]["kernel"]
    assert kernel.shape[-1] == (10 if layer == "fc2" else 1) and not kernel.any()


def test_unstructured_masks_lose_what_is_empty_and_what_nobody_reads():
    sparse = start("lenet5_caffe", (16, 16, 1))
    rng = np.random.default_rng(0)
    mask = jax.tree.map(lambda m: rng.random(m.shape) < 0.3, sparse.mask)
    mask["conv1"]["kernel"][..., 2] = False  # empty
    mask["conv2"]["kernel"][:, :, 5] = False  # no filter reads conv1's fifth
    mask["conv2"]["kernel"][..., 9] = False
    mask["conv2"]["kernel"][0, 0, 2, 9] = True  # reads only the empty one
    mask["fc2"]["kernel"][:] = True
    _, small = check(sparse._replace(mask=mask), "lenet5_caffe", (16, 16, 1))
    widths = [small.params[n]["kernel"].shape[-1] for n in ("conv1", "conv2", "fc1")]
    assert widths == [18, 49, 500]
    left = np.delete(mask["conv1"]["kernel"], [2, 5], -1)
    np.testing.assert_array_equal(small.mask["conv1"]["kernel"], left)


@pytest.mark.parametrize(
    "name, change, said",
    [
        ("resnet18", {"norm": "group"}, "'resnet18' normalises groups of channels"),
        ("resnet18", {"base": 4}, "holds params/bn1/bias of shape (2,), expected (4,)"),
        ("fedsparsify_cnn", {}, "normalises groups of channels, or after the act"),
    ],
)
def test_what_cannot_be_compacted_is_refused_in_a_line(name, change, said):
    given = {"base": 2, "norm": change.get("norm", "batch")}
    given = given if name == "resnet18" else {"widths": (4, 4, 4, 4, 4, 4, 8)}
    sparse = start(name, (8, 8, 3), **given)
    refused(lambda: compact(sparse, name, 10, (8, 8, 3), **given | change), said)
