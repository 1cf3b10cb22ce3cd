"""Users' modules train as in plain Flax on batches without padding."""

from collections.abc import Callable
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sparsefl_jax.core.types import Batches, SparseModel
from sparsefl_jax.models import Model
from sparsefl_jax.training import local
from tests.networks import normal
from tests.refusals import refused

SHAPE = (4, 4, 3)
EXAMPLE = jax.ShapeDtypeStruct((1, *SHAPE), jnp.float32)


class Net(nn.Module):
    """A convolution, normalised, and a dense layer."""

    norm: Callable = nn.BatchNorm

    @nn.compact
    def __call__(self, x, training):
        x = nn.Conv(4, (3, 3), strides=2)(x)
        x = nn.relu(self.norm(use_running_average=not training, momentum=0.5)(x))
        return nn.Dense(3)(x.reshape(x.shape[0], -1))


def by_flax(module, params, stats, batches, rate):
    """Trains in a plain loop over batches without padding."""

    @jax.jit
    def step(params, stats, x, y):
        def loss(params):
            held = {"params": params, "batch_stats": stats}
            logits, new = module.apply(held, x, True, mutable=["batch_stats"])
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
            return losses.mean(), new["batch_stats"]

        return jax.grad(loss, has_aux=True)(params)

    for x, y in batches:
        grads, stats = step(params, stats, x, y)
        params = jax.tree.map(lambda p, g: p - rate * g, params, grads)
    return params, stats


def close(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), got, want)


@pytest.mark.parametrize(
    "norm",
    [nn.BatchNorm, pytest.param(nn.remat(nn.BatchNorm), marks=pytest.mark.slow)],
)
def test_training_equals_flax_on_the_batches_without_padding(norm):
    module = Net(norm)
    model = Model.from_flax(module, EXAMPLE)
    params, stats = model.init(jax.random.key(0))
    x, y = 3 + 2 * normal(1, 11, *SHAPE), np.arange(11, dtype=np.int32) % 3
    # Eleven samples in batches of four: padding points to row 0, and has weight 0.
    order = np.random.default_rng(2).permutation(11).astype(np.int32)
    whole = [x[order[i : i + 4]] for i in (0, 4, 8)]
    labels = [y[order[i : i + 4]] for i in (0, 4, 8)]
    batches = Batches(
        x=jnp.asarray(x),
        y=jnp.asarray(y),
        order=jnp.append(order, 0).reshape(1, 3, 4),
        weight=jnp.float32([1] * 11 + [0]).reshape(1, 3, 4),
        num_steps=jnp.int32(3),
    )
    rate, loss_fn = 0.05, local.objective(model)
    tx = local.make_optimizer("sgd", learning_rate=rate)(0)

    @jax.jit
    def train(params, stats, batches):
        start = SparseModel(params, None, stats)
        return local.train(jax.random.key(3), loss_fn, tx, start, batches).model

    pairs = [*zip(whole, labels, strict=True)]
    want, want_stats = by_flax(module, params, stats, pairs, rate)
    done = train(params, stats, batches)
    close(done.stats, want_stats)
    close(done.params, want)


def a_module(call):
    """Returns a module with this `__call__`."""
    names = {"__call__": nn.compact(call), "__module__": __name__}
    return type("Mine", (nn.Module,), names)()


def answer(x, told):
    return nn.Dense(1, use_bias=False)(x) * 0 + (2.0 if told else 1.0)


FLAGS = {
    "is_training": lambda self, x, *, is_training=False: answer(x, is_training),
    "deterministic": lambda self, x, deterministic=True: answer(x, not deterministic),
    "use_running_average": lambda self, x, use_running_average=None: answer(
        x, not use_running_average
    ),
}


@pytest.mark.parametrize("name", FLAGS)
def test_a_module_receives_the_flag_of_training_by_any_usual_name(name):
    model = Model.from_flax(a_module(FLAGS[name]), jnp.ones((1, 3), jnp.float32))
    params, _ = model.init(jax.random.key(0))
    for train, told in ((True, 2.0), (False, 1.0)):
        out, _ = model.apply(params, {}, jnp.ones((1, 3)), train=train)
        assert out.item() == told


def norm_of_all_positions(self, x, train):
    x = nn.Dense(2)(x.reshape(-1, x.shape[-1]))
    return nn.BatchNorm(use_running_average=not train)(x).reshape(-1, 32)


def one_dense(self, x):
    return nn.Dense(2)(x.reshape(x.shape[0], -1))


def centred(self, x, mixing):
    return one_dense(self, x - x.mean(0, keepdims=True) if mixing else x)


def caching(self, x):
    self.variable("cache", "seen", jnp.zeros, ())
    return one_dense(self, x)


REFUSED = [
    (lambda self, x, mode="train": one_dense(self, x), "takes 'mode', expected only"),
    (norm_of_all_positions, "normalises (48, 2), expected [3, ...]"),
    (lambda self, x, train: centred(self, x, train), "in training a padded sample"),
    (lambda self, x, train: centred(self, x, not train), "in evaluation a padded s"),
    (lambda self, x: one_dense(self, x).sum(0), "3 samples become (2,)"),
    (caching, "collections ['cache']"),
]


@pytest.mark.parametrize("call, told", REFUSED, ids=[told for _, told in REFUSED])
def test_a_module_is_refused_in_one_line(call, told):
    refused(lambda: Model.from_flax(a_module(call), EXAMPLE), told)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, training=False):
        return nn.Dropout(0.5, deterministic=not training)(nn.Dense(3)(x))


def test_a_module_within_another_is_told_as_well():
    make = lambda: Model.from_flax(nn.Sequential([Block()]), jnp.ones((1, 3)))  # noqa: E731
    refused(make, "Block 'layers_0' is called without its argument 'training', which")


def norms_of_single_samples(self, x):
    for norm in (nn.LayerNorm(), nn.GroupNorm(3), nn.InstanceNorm(), nn.RMSNorm()):
        x = norm(x)
    return one_dense(self, x)


def test_what_mixes_no_valid_sample_with_padding_passes():
    Model.from_flax(a_module(norms_of_single_samples), EXAMPLE)
