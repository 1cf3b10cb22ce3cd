"""Counts, multiply-adds, layers and one step of every network."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from sparsefl_jax.models import MODELS, Model, build, layers

MNIST, FEMNIST, CIFAR = (10, (28, 28, 1)), (62, (28, 28, 1)), (10, (32, 32, 3))

# name, data, kwargs, parameters, statistics, multiply-adds of one sample
COUNTS = (
    ("mlp", MNIST, {}, 118_282, 0, 118_016),
    ("mnistnet", MNIST, {}, 261_840, 0, None),
    ("lenet5_caffe", MNIST, {}, 430_500, 0, 2_293_000),
    ("conv4", CIFAR, {}, 804_800 + 2 * 640, 2 * 640, 82_489_600),
    ("conv4", CIFAR, {"norm": None}, 804_800, 0, 82_489_600),
    ("ic", FEMNIST, {}, 164_506, 0, 5_519_544),
    ("fedsparsify_cnn", CIFAR, {}, 1_609_930, 384, None),
    ("sa", (3, (768,)), {}, 24_707, 0, 24_672),
    ("femnist_cnn", FEMNIST, {}, 6_603_710, 0, None),
    ("simple_cnn", CIFAR, {}, 1_626_442, 0, None),
    ("small_cnn", CIFAR, {}, 89_834, 0, None),
    ("resnet18", CIFAR, {}, 11_173_962, 9_600, 555_417_600 + 5_120),
    ("resnet18", CIFAR, {"norm": "group"}, 11_173_962, 0, 555_417_600 + 5_120),
    ("resnet18", (100, (32, 32, 3)), {}, 11_220_132, 9_600, None),
    ("resnet18", (200, (64, 64, 3)), {}, 11_271_432, 9_600, None),
    ("vgg16", CIFAR, {}, 14_724_042, 8_448, None),
)
# Programs here run once or twice, so compiling is all the time there is.
quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
RELEASE = {"base": 32, "variant": "preactivation", "init": "torch"}


def normal(seed, *shape):
    """From NumPy, for which nothing needs compiling."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def num_entries(tree):
    return sum(v.size for v in jax.tree.leaves(tree))


def paths(tree):
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(k, simple=True, separator="/"): v for k, v in leaves}


@pytest.mark.parametrize("name, data, kwargs, num_params, num_stats, macs", COUNTS)
def test_counts(name, data, kwargs, num_params, num_stats, macs):
    model = build(name, *data, **kwargs)
    params, stats = jax.eval_shape(model.init, jax.random.key(0))
    assert num_entries(params) == num_params
    assert num_entries(stats) == num_stats
    assert jax.tree.structure(model.macs) == jax.tree.structure(params)
    counts = jax.tree.leaves(model.macs)
    assert all(type(c) is int for c in counts)
    assert macs is None or sum(counts) == macs
    for path, count in paths(model.macs).items():
        assert (count > 0) == path.endswith("kernel"), path


def test_counts_of_the_released_resnet():
    model = build("resnet18", 100, (32, 32, 3), **RELEASE)
    params, _ = jax.eval_shape(model.init, jax.random.key(0))
    kernels = {k: v for k, v in paths(params).items() if v.ndim == 4}
    assert num_entries(kernels) == 2_790_240
    assert sum(v.shape[-1] for v in kernels.values()) == 2_400
    convs = sum(v for k, v in paths(model.macs).items() if k in kernels)
    assert convs == 139_296_768


def test_paths_read_well():
    params, _ = jax.eval_shape(build("resnet18", *CIFAR).init, jax.random.key(0))
    kernels = {k for k, v in paths(params).items() if v.ndim == 4}
    assert len(kernels) == 20
    expected = {"conv1", "layer1_block0/conv1", "layer2_block0/shortcut"}
    assert {f"{name}/kernel" for name in expected} <= kernels
    assert {"fc/kernel", "fc/bias", "bn1/scale"} <= set(paths(params))


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


@pytest.mark.parametrize("name", SMALL)
def test_one_training_step(name):
    shape, kwargs = SMALL[name]
    lowering = {} if name in ("mlp", "sa") else {"lowering": "plain"}
    model = build(name, 5, shape, **lowering, **kwargs)
    params, stats = model.init(jax.random.key(0))
    x, y = normal(1, 3, *shape), jnp.array([0, 1, 4], jnp.int32)

    @quick_jit
    def slope(params):
        def loss(params):
            logits, new = model.apply(params, stats, x, train=True)
            return -nn.log_softmax(logits)[jnp.arange(3), y].mean(), (logits, new)

        return jax.value_and_grad(loss, has_aux=True)(params)

    (before, (logits, new)), grads = jax.device_get(slope(params))
    assert logits.shape == (3, 5) and logits.dtype == np.float32
    assert jax.tree.structure(new) == jax.tree.structure(stats)
    assert all(np.isfinite(v).all() for v in jax.tree.leaves(grads))
    assert all((v != 0).any() for k, v in paths(grads).items() if "kernel" in k)
    step = 0.001 * before / sum((v * v).sum() for v in jax.tree.leaves(grads))
    moved = jax.tree.map(lambda p, g: p - step * g, jax.device_get(params), grads)
    after = slope(moved)[0][0]
    assert 0.9985 < after / before < 0.9995


def test_mnistnet_can_end_in_a_softmax():
    model = build("mnistnet", 5, (14, 14, 1), softmax_output=True)
    apply = quick_jit(partial(model.apply, train=False))
    out, _ = apply(*model.init(jax.random.key(0)), normal(0, 2, 14, 14, 1))
    np.testing.assert_allclose(out.sum(1), 1.0, rtol=1e-6)


@pytest.mark.parametrize("size, stride", [(2, 2), (3, 1), (3, 2)])
@pytest.mark.parametrize("side", [8, 9])
def test_max_pool_equals_reduce_window(size, stride, side):
    x = normal(side, 2, side, side + 1, 3)

    def window(x):
        dims, strides = (1, size, size, 1), (1, stride, stride, 1)
        return lax.reduce_window(x, -jnp.inf, lax.max, dims, strides, "VALID")

    @quick_jit
    def both(x):
        outs = []
        for f in (window, lambda x: layers.max_pool(x, size, stride)):
            y, vjp = jax.vjp(f, x)
            outs.append((y, vjp(normal(0, *y.shape))[0]))
        return outs

    (want, want_dx), (got, got_dx) = both(x)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_allclose(got_dx, want_dx, atol=1e-6)


def test_equal_entries_of_a_window_share_its_gradient():
    x = jnp.float32([[1, 2], [2, 2]]).reshape(1, 2, 2, 1)
    dx = jax.grad(lambda x: layers.max_pool(x).sum())(x)
    np.testing.assert_allclose(dx.ravel(), [0, 1 / 3, 1 / 3, 1 / 3], rtol=1e-6)


def test_second_derivatives_of_dense_and_pooling():
    two = {"window_shape": (2, 2), "strides": (2, 2)}

    class Network(nn.Module):
        plain: bool

        @nn.compact
        def __call__(self, x):
            pool = partial(nn.max_pool, **two) if self.plain else layers.max_pool
            x = pool(jnp.sin(x)).reshape(x.shape[0], -1)
            return (
                nn.Dense(5, name="fc1")(x)
                if self.plain
                else layers.dense(x, 5, name="fc1")
            )

    x = normal(0, 3, 4, 4, 2)
    variables = Network(False).init(jax.random.key(0), x)

    @quick_jit
    def second(x, variables):
        def products(plain):
            def loss(x, v):
                return (Network(plain).apply(v, x) ** 3).sum()

            grad = jax.grad(loss, (0, 1))
            forward = jax.jvp(grad, (x, variables), (x, variables))
            slope = jax.grad(lambda x: jnp.vdot(grad(x, variables)[0], x))(x)
            return forward, slope

        return products(False), products(True)

    got, want = second(x, variables)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), got, want)


def test_the_loop_of_steps_updates_a_dense_kernel_in_place():
    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.relu(layers.dense(x, 37, name="fc1"))
            return layers.dense(x, 53, name="fc2")

    network, x = Network(), normal(0, 4, 29)
    variables = network.init(jax.random.key(0), x)

    def step(_, v):
        grads = jax.grad(lambda v: (network.apply(v, x) ** 2).sum())(v)
        return jax.tree.map(lambda p, g: p - 0.1 * g, v, grads)

    program = jax.jit(lambda v: lax.fori_loop(0, 9, step, v), donate_argnums=0)
    text = program.lower(variables).compile().as_text()
    copies = [line for line in text.splitlines() if " copy(" in line]
    assert not [line for line in copies if "f32[37,53]" in line]


def test_max_pool_larger_than_the_image():
    with pytest.raises(ValueError, match="size=3 is larger than the image"):
        layers.max_pool(jnp.ones((1, 2, 4, 1)), 3, 1)


@partial(quick_jit, static_argnames="train")
def batch_norm(x, weight=None, train=True):
    module = layers.BatchNorm()
    variables = module.init(jax.random.key(0), x, train=False)
    out, changed = module.apply(
        variables, x, train=train, weight=weight, mutable=["batch_stats"]
    )
    return out, changed["batch_stats"]


def test_batch_norm_equals_flax():
    x = 3.0 + 2.0 * normal(0, 6, 5, 4, 3)
    module = nn.BatchNorm(use_running_average=False, momentum=0.9, epsilon=1e-5)

    @quick_jit
    def flax(x):
        variables = module.init(jax.random.key(0), x)
        return module.apply(variables, x, mutable=["batch_stats"])

    want, changed = flax(x)
    got, stats = batch_norm(x)
    np.testing.assert_allclose(got, want, atol=1e-5)
    for name in ("mean", "var"):
        np.testing.assert_allclose(stats[name], changed["batch_stats"][name], rtol=1e-5)


def test_batch_norm_leaves_out_padding():
    x = 5.0 + normal(0, 6, 4, 4, 3)
    weight = np.array([1, 1, 0, 1, 0, 0], np.float32)
    valid = weight > 0
    padded = x.copy()
    padded[weight == 0] = np.nan
    got, stats = batch_norm(padded, weight)
    want, want_stats = batch_norm(x[valid])
    np.testing.assert_allclose(got[valid], want, atol=1e-5)
    np.testing.assert_allclose(stats["mean"], want_stats["mean"], rtol=1e-5)
    np.testing.assert_allclose(stats["var"], want_stats["var"], rtol=1e-5)


def test_batch_norm_of_padding_alone_changes_nothing():
    x = 5.0 + normal(0, 4, 3)
    out, stats = batch_norm(x, jnp.zeros(4, jnp.float32))
    assert bool(jnp.isfinite(out).all())
    np.testing.assert_array_equal(stats["mean"], np.zeros(3))
    np.testing.assert_array_equal(stats["var"], np.ones(3))


def test_evaluation_uses_and_keeps_the_running_statistics():
    x = 5.0 + normal(0, 4, 3)
    out, stats = batch_norm(x, train=False)
    np.testing.assert_allclose(out, x / np.sqrt(1 + 1e-5), rtol=1e-6)
    np.testing.assert_array_equal(stats["mean"], np.zeros(3))


def test_a_padded_sample_changes_neither_logits_nor_statistics():
    shape = (28, 28, 3)
    model = build("conv4", 5, shape, lowering="plain")
    params, stats = model.init(jax.random.key(0))
    x = normal(1, 4, *shape)
    weight = jnp.array([1, 1, 1, 0], jnp.float32)

    @quick_jit
    def both(x):
        padded = model.apply(params, stats, x, train=True, weight=weight)
        return padded, model.apply(params, stats, x[:3], train=True)

    (logits, new), (want, want_new) = both(x)
    np.testing.assert_allclose(logits[:3], want, atol=1e-4)
    for got, expected in zip(*map(jax.tree.leaves, (new, want_new)), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-5)


def test_default_initialisers_are_those_of_pytorch():
    params, _ = build("mnistnet", *MNIST).init(jax.random.key(0))
    for layer, fan_in in (("conv2", 250), ("fc1", 5_120)):
        bound = fan_in**-0.5
        for leaf in params[layer].values():
            assert float(jnp.abs(leaf).max()) <= bound
        kernel = params[layer]["kernel"]
        np.testing.assert_allclose(kernel.std(), bound / 3**0.5, rtol=0.05)
        assert float(params[layer]["bias"].std()) > 0.2 * bound


def test_any_linen_module():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            shared = nn.Dense(6, name="shared")
            x = nn.relu(shared(shared(x)))
            x = nn.Dropout(0.5, deterministic=not train)(x)
            return nn.DenseGeneral((2, 3), name="heads")(x).mean(1)

    example = jax.ShapeDtypeStruct((7, 5, 6), jnp.float32)
    model = Model.from_flax(Net(), example)
    # Two uses of 36 entries at five positions; a head's features are no positions.
    assert model.macs["shared"] == {"kernel": 2 * 5 * 36, "bias": 0}
    assert model.macs["heads"]["kernel"] == 5 * 36
    params, stats = model.init(jax.random.key(0))
    assert stats == {}
    x = jnp.ones(example.shape, jnp.float32)
    first, second = (
        model.apply(params, stats, x, train=True, key=jax.random.key(i))[0]
        for i in (0, 1)
    )
    assert first.dtype == jnp.float32 and not jnp.array_equal(first, second)
    logits, _ = model.apply(params, stats, x, train=False)
    assert logits.shape == (7, 2, 3)


def test_reading_puts_preprocessing_in_front():
    plain = build("mlp", 3, (2, 2, 1), widths=(4,))
    raw = np.arange(8, dtype=np.uint8).reshape(2, 2, 2, 1)

    def preprocess(key, x, train):
        assert (key is None) == (not train)
        return x.astype(jnp.float32) / 8 + (train and jax.random.normal(key))

    model = plain.reading(preprocess)
    params, stats = model.init(jax.random.key(0))
    got, _ = model.apply(params, stats, raw, train=False)
    want, _ = plain.apply(params, stats, raw.astype(np.float32) / 8, train=False)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    other, _ = model.apply(params, stats, raw, train=True, key=jax.random.key(0))
    assert not np.allclose(got, other)


def test_other_collections_are_refused():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            self.variable("cache", "seen", jnp.zeros, ())
            return nn.Dense(2)(x)

    with pytest.raises(ValueError, match="collections \\['cache'\\]"):
        Model.from_flax(Net(), jnp.ones((1, 3), jnp.float32))


def test_errors_are_one_line():
    with pytest.raises(
        ValueError, match="model='lenet'.*, expected one of mlp, mnistnet"
    ):
        build("lenet", *MNIST)
    with pytest.raises(ValueError, match="no argument 'width', expected one of widths"):
        build("mlp", *MNIST, width=3)
    with pytest.raises(
        ValueError, match="variant='v2', expected one of postactivation"
    ):
        build("resnet18", *CIFAR, variant="v2")
    with pytest.raises(ValueError, match="norm='layer', expected one of"):
        build("conv4", *CIFAR, norm="layer")
    with pytest.raises(ValueError, match="kernel size 5 exceeds the image 4x4, pad=0"):
        build("conv4", 10, (16, 16, 3))
    with pytest.raises(ValueError, match="size=2 is larger than the image"):
        build("vgg16", 10, (16, 16, 3))
    assert all(factory.__doc__ for factory in MODELS.values())
