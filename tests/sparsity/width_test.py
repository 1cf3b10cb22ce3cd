"""A mask of a slice computes the same as a network of that width; norms; refusals."""

from functools import partial, reduce

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.models import Model, build
from sparsefl_jax.sparsity import masks, width
from tests.networks import normal, quick_jit
from tests.refusals import refused

KEY = jax.random.key(0)


NETWORKS = {
    "mlp": ((4, 4, 1), {"widths": (10, 7)}, 0.4, {"widths": (4, 3)}),
    "conv4": (
        (28, 28, 3),
        {"widths": (8, 8, 12, 12, 10, 10), "norm": "static"},
        0.3,
        {"widths": (3, 3, 4, 4, 3, 3)},
    ),
    "resnet18": (
        (8, 8, 3),
        {"base": 5, "variant": "preactivation", "init": "torch"},
        0.4,
        {"base": 2},
    ),
}


def cut(tree, mask):
    """Returns the alive entries as smaller arrays; a mask is a product of axes."""

    def leaf(value, alive):
        axes = range(alive.ndim)
        kept = [alive.any(tuple(a for a in axes if a != axis)) for axis in axes]
        np.testing.assert_array_equal(alive, reduce(np.multiply.outer, kept))
        return np.asarray(value)[np.ix_(*kept)]

    return jax.tree.map(leaf, tree, jax.device_get(mask))


def assert_close(got, want):
    """Compares to 1e-5 of the largest entry, or of 1 if that is larger."""
    atol = 1e-5 * max(1.0, abs(want).max())
    np.testing.assert_allclose(got, want, rtol=0, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_a_mask_computes_what_a_narrow_network_does(name):
    shape, kwargs, rate, narrow = NETWORKS[name]
    model = build(name, 5, shape, **kwargs)
    params, stats = jax.device_get(model.init(KEY))
    params = jax.tree.map(
        lambda p: p + 0.1 * normal(p.size, *p.shape) * (p.ndim == 1), params
    )
    stats = jax.tree.map(lambda s: s + 0.5 * abs(normal(s.size, *s.shape)), stats)
    mask, of_stats = width.window(params, rate), width.window_of_stats(stats, rate)
    x, y = normal(1, 6, *shape), jnp.array([0, 1, 4, 3, 2, 1], jnp.int32)

    def run(net, params, stats):
        def loss(params):
            logits, new = net.apply(params, stats, x, train=True)
            losses = optax.losses.softmax_cross_entropy_with_integer_labels(logits, y)
            return losses.sum(), (logits, new)

        (_, (logits, new)), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return logits, new, grads, net.apply(params, stats, x, train=False)[0]

    wide = quick_jit(partial(run, model))(masks.apply(params, mask), stats)
    logits, new, grads, evaluated = jax.device_get(wide)
    small = build(name, 5, shape, **kwargs | narrow)
    want = quick_jit(partial(run, small))(cut(params, mask), cut(stats, of_stats))
    got = logits, cut(new, of_stats), cut(grads, mask), evaluated
    jax.tree.map(assert_close, got, jax.device_get(want))
    outside = jax.tree.map(lambda g, m: g[~np.asarray(m)], grads, mask)
    assert all((g == 0).all() for g in jax.tree.leaves(outside))


def test_a_grouped_convolution_can_not_be_sliced():
    conv = partial(nn.Conv, kernel_size=(3, 3))
    layers = [conv(8), conv(8, feature_group_count=4), lambda x: x.mean((1, 2))]
    network = nn.Sequential([*layers, nn.Dense(3)])
    example = jax.ShapeDtypeStruct((1, 8, 8, 3), jnp.float32)
    params, _ = jax.eval_shape(Model.from_flax(network, example).init, KEY)
    model = SparseModel(params, None, {})
    refused(lambda: width.check_sliceable(model), "'layers_1' reads 2 channels")


def chain():
    """Returns two inputs, four normalised hidden channels and three classes."""
    return {
        "fc1": {"kernel": jnp.ones((2, 4)), "bias": jnp.ones(4)},
        "bn1": {"scale": jnp.ones(4), "bias": jnp.ones(4)},
        "fc2": {"kernel": jnp.ones((4, 3)), "bias": jnp.ones(3)},
    }


def test_a_slice_reads_every_input_and_its_norms_are_cut_and_not_scaled():
    mask, scaled = width.window(chain(), 0.5), width.scale(chain(), 0.25)
    half = [True, True, False, False]
    assert mask["fc1"]["kernel"].tolist() == [half, half]
    for module, leaf in (("fc1", "bias"), ("bn1", "scale"), ("bn1", "bias")):
        assert mask[module][leaf].tolist() == half
        assert (scaled[module][leaf] == (4 if module == "fc1" else 1)).all()


def test_what_cannot_be_sliced_is_named():
    strange, stats = {"bn1": {"scale": jnp.ones(5)}}, {"mean": jnp.zeros((2, 2))}
    said = "leaf 'bn1/scale' of shape (5,), expected"
    refused(lambda: width.window(chain() | strange, 0.5), said)
    said = "statistic 'mean' has shape (2, 2)"
    refused(lambda: width.window_of_stats(stats, 0.5), said)
