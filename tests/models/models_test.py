"""Every network: parameters, multiply-adds, paths and one training step."""

from functools import cache

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.models import Model, build
from tests.networks import mostly_slow, normal, num_entries, quick_jit
from tests.refusals import refused

MNIST, FEMNIST, CIFAR = (10, (28, 28, 1)), (62, (28, 28, 1)), (10, (32, 32, 3))

# name, data, kwargs, parameters, statistics, multiply-adds of one sample
COUNTS = (
    ("mlp", MNIST, {}, 118_282, 0, 118_016),
    ("mnistnet", MNIST, {}, 261_840, 0, None),
    ("lenet5_caffe", MNIST, {}, 430_500, 0, 2_293_000),
    ("conv4", CIFAR, {}, 804_800 + 2 * 640, 2 * 640, 82_489_600),
    ("ic", FEMNIST, {}, 164_506, 0, 5_519_544),
    ("fedsparsify_cnn", CIFAR, {}, 1_609_930, 384, None),
    ("sa", (3, (768,)), {}, 24_707, 0, 24_672),
    ("femnist_cnn", FEMNIST, {}, 6_603_710, 0, None),
    ("simple_cnn", CIFAR, {}, 1_626_442, 0, None),
    # As Reddi et al. have it: 3x3 of 1 and of 32 inputs without padding, and fc1.
    ("simple_cnn", FEMNIST, {"dropout": 0.5}, 1_206_590, 0, 11_999_104),
    ("small_cnn", CIFAR, {}, 89_834, 0, None),
    ("resnet18", CIFAR, {}, 11_173_962, 9_600, 555_417_600 + 5_120),
    ("vgg16", CIFAR, {}, 14_724_042, 8_448, None),
    # Embedding, three gates of 16 and 96 inputs with four biases, and the last layer.
    ("char_gru", (92, (40,)), {}, 43_036, 0, 40 * (3 * 96 * 112 + 96 * 92)),
    # DistilBERT has 66,362,880 parameters; the last two layers come on top.
    (
        "encoder",
        (2, (512,)),
        dict(layers=6, width=768, heads=12, hidden=3072, vocabulary=30_522),
        66_362_880 + 768 * 769 + 2 * 769,
        0,
        6 * 512 * (4 * 768**2 + 2 * 768 * 3072) + 768**2 + 2 * 768,
    ),
)


def paths(tree):
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(k, simple=True, separator="/"): v for k, v in leaves}


built = cache(build)


@pytest.mark.parametrize("name, data, kwargs, num_params, num_stats, macs", COUNTS)
def test_counts(name, data, kwargs, num_params, num_stats, macs):
    model = built(name, *data, **kwargs)
    params, stats = jax.eval_shape(model.init, jax.random.key(0))
    assert num_entries(params) == num_params
    assert num_entries(stats) == num_stats
    assert jax.tree.structure(model.macs) == jax.tree.structure(params)
    counts = jax.tree.leaves(model.macs)
    assert all(type(c) is int for c in counts)
    assert macs is None or sum(counts) == macs
    for path, count in paths(model.macs).items():
        assert (count > 0) == path.endswith("kernel"), path


SMALL = {
    "mlp": ((8, 8, 1), {}),
    "mnistnet": ((14, 14, 1), {}),
    "lenet5_caffe": ((16, 16, 1), {}),
    "conv4": ((28, 28, 3), {}),
    "ic": ((14, 14, 1), {}),
    "fedsparsify_cnn": ((8, 8, 3), {"widths": (4, 4, 4, 4, 4, 4, 8), "dropout": 0.0}),
    "sa": ((16,), {}),
    "femnist_cnn": ((8, 8, 1), {}),
    "simple_cnn": ((8, 8, 3), {}),
    "small_cnn": ((8, 8, 3), {}),
    "resnet18": ((16, 16, 3), {"base": 2}),
}


@mostly_slow(SMALL, quick=("mlp", "mnistnet", "sa"))
def test_every_kernel_has_a_gradient_in_training(name):
    shape, kwargs = SMALL[name]
    model = build(name, 5, shape, **kwargs)
    params, stats = model.init(jax.random.key(0))
    x, y = normal(1, 3, *shape), jnp.array([0, 1, 4], jnp.int32)

    def loss(params):
        logits, new = model.apply(params, stats, x, train=True)
        return -nn.log_softmax(logits)[jnp.arange(3), y].mean(), (logits, new)

    grads, (logits, new) = quick_jit(jax.grad(loss, has_aux=True))(params)
    assert logits.shape == (3, 5) and logits.dtype == np.float32
    assert jax.tree.structure(new) == jax.tree.structure(stats)
    assert all(np.isfinite(v).all() for v in jax.tree.leaves(grads))
    assert all((v != 0).any() for k, v in paths(grads).items() if "kernel" in k)


def test_default_initialisers_are_those_of_pytorch():
    params, _ = build("mnistnet", *MNIST).init(jax.random.key(0))
    for layer, fan_in in (("conv2", 250), ("fc1", 5_120)):
        bound = fan_in**-0.5
        for leaf in params[layer].values():
            assert float(jnp.abs(leaf).max()) <= bound
        kernel = params[layer]["kernel"]
        np.testing.assert_allclose(kernel.std(), bound / 3**0.5, rtol=0.05)
        assert float(params[layer]["bias"].std()) > 0.2 * bound


def test_reading_puts_preprocessing_in_front():
    plain = build("mlp", 3, (2, 2, 1), widths=(4,))
    raw = np.arange(8, dtype=np.uint8).reshape(2, 2, 2, 1)

    def preprocess(key, x, train):
        assert (key is None) == (not train)
        return x.astype(jnp.float32) / 8 + (train and jax.random.normal(key))

    model = plain.with_preprocess(preprocess)
    params, stats = model.init(jax.random.key(0))
    got, _ = model.apply(params, stats, raw, train=False)
    want, _ = plain.apply(params, stats, raw.astype(np.float32) / 8, train=False)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    other, _ = model.apply(params, stats, raw, train=True, key=jax.random.key(0))
    assert not np.allclose(got, other)


def test_uses_of_a_layer_count_each_time_and_features_are_no_positions():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            shared = nn.Dense(6, name="shared")
            x = nn.relu(shared(shared(x)))
            return nn.DenseGeneral((2, 3), name="heads")(x).mean(1)

    model = Model.from_flax(Net(), jax.ShapeDtypeStruct((7, 5, 6), jnp.float32))
    # Two uses of 36 entries at five positions; a head's features are no positions.
    assert model.macs["shared"] == {"kernel": 2 * 5 * 36, "bias": 0}
    assert model.macs["heads"]["kernel"] == 5 * 36


@pytest.mark.slow
def test_resnet_of_sparsyfed_begins_truncated():
    """Kernels at N(0, 1 / fan_in) within two deviations of the normal that is cut."""
    model = build("resnet18", 10, (8, 8, 3), base=16, init="lecun_truncated")
    params, _ = model.init(jax.random.key(0))
    kernel = params["layer2_block1"]["conv2"]["kernel"]  # fan-in 9 * 32
    deviation = (9 * 32) ** -0.5
    assert float(kernel.std()) == pytest.approx(deviation, rel=0.03)
    assert 1.9 < float(jnp.abs(kernel).max()) * 0.87963 / deviation < 2.0001
    head = params["fc"]["kernel"]
    assert float(head.std()) == pytest.approx(128**-0.5, rel=0.1)
    assert not params["fc"]["bias"].any()


@pytest.mark.parametrize(
    "name, data, options, said",
    [
        ("mlp", MNIST, {"width": 3}, "argument 'width'"),
        ("conv4", CIFAR, {"norm": "layer"}, "norm='layer', expected one of"),
        ("conv4", (10, (16, 16, 3)), {}, "smaller than a kernel or a pool"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line(name, data, options, said):
    refused(lambda: build(name, *data, **options), said)
