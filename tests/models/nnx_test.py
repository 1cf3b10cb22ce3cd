"""Users' nnx modules: statistics, dropout, refusals and multiply-adds, by hand."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from sparsefl_jax.models import Model, multiply_adds
from tests.networks import normal
from tests.refusals import refused

SHAPE = (4, 4, 3)
EXAMPLE = jax.ShapeDtypeStruct((1, *SHAPE), jnp.float32)
KEY = jax.random.key(0)


class Net(nnx.Module):
    """A strided convolution, normalised, dropout and a dense layer, in a list."""

    def __init__(self, *, rngs, rate=0.5):
        self.conv = nnx.Conv(3, 5, (3, 3), strides=2, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(5, momentum=0.75, rngs=rngs)
        self.drop = nnx.Dropout(rate, rngs=rngs)
        self.heads = nnx.List([nnx.Linear(20, 3, rngs=rngs)])

    def __call__(self, x):
        x = nnx.relu(self.norm(self.conv(x)))
        return self.heads[0](self.drop(x.reshape(x.shape[0], -1)))


@functools.cache
def net():
    model = Model.from_nnx(Net, EXAMPLE)
    return model, *model.init(KEY)


def test_leaves_have_the_names_of_attributes_and_hand_counted_multiply_adds():
    model, params, _ = net()
    # Four positions with 3 x 3 x 3 inputs each for five filters; 20 x 3.
    assert model.macs == {
        "conv": {"kernel": 4 * 27 * 5},
        "heads": {"0": {"bias": 0, "kernel": 60}},
        "norm": {"bias": 0, "scale": 0},
    }
    assert jax.tree.structure(model.macs) == jax.tree.structure(params)


def test_statistics_of_a_batch_leave_padding_out():
    model, params, stats = net()
    x, weight = 3 + normal(1, 4, *SHAPE), jnp.float32([1, 1, 1, 0])
    _, new = model.apply(params, stats, x, train=True, weight=weight, key=KEY)
    module = Net(rngs=nnx.Rngs(0))
    module.conv.kernel[...] = params["conv"]["kernel"]
    y = np.asarray(module.conv(x[:3]))
    mean, var = y.mean((0, 1, 2)), y.var((0, 1, 2))
    np.testing.assert_allclose(new["norm"]["mean"], 0.25 * mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(new["norm"]["var"], 0.75 + 0.25 * var, rtol=1e-4)
    _, same = model.apply(params, stats, x, train=False)
    jax.tree.map(np.testing.assert_array_equal, same, stats)


def test_two_layers_of_dropout_draw_apart_by_key_and_in_training_alone():
    class Twice(nnx.Module):
        def __init__(self, *, rngs):
            self.scale = nnx.Param(jnp.ones((1, 1)))
            self.drops = nnx.List([nnx.Dropout(0.5, rngs=rngs) for _ in range(2)])

        def __call__(self, x):
            return jnp.concatenate([self.scale * drop(x) for drop in self.drops], -1)

    model = Model.from_nnx(Twice, jnp.ones((1, 50), jnp.float32))
    params, stats = model.init(KEY)

    def logits(train, key=None):
        ones = jnp.ones((1, 50), jnp.float32)
        return np.asarray(model.apply(params, stats, ones, train=train, key=key)[0][0])

    one, other = np.split(logits(True, KEY), 2)
    assert {0.0, 2.0} == set(one) and (one != other).any()
    assert (logits(True, jax.random.key(1))[:50] != one).any()
    assert (logits(False) == 1).all()


class Train(nnx.Module):
    def __init__(self, *, rngs):
        self.dense = nnx.Linear(3, 1, rngs=rngs)

    def __call__(self, x, train=False):
        return self.dense(x) * 0 + (2.0 if train else 1.0)


def test_a_module_receives_the_flag_of_training():
    model = Model.from_nnx(Train, jnp.ones((1, 3), jnp.float32))
    params, _ = model.init(KEY)
    for train, said in ((True, 2.0), (False, 1.0)):
        assert model.apply(params, {}, jnp.ones((1, 3)), train=train)[0].item() == said


class Within(nnx.Module):
    def __init__(self, *, rngs):
        self.inner = Train(rngs=rngs)

    def __call__(self, x):
        return self.inner(x)


class Cached(Train):
    def __init__(self, *, rngs):
        super().__init__(rngs=rngs)
        self.memory = nnx.Cache(jnp.zeros(3))


REFUSED = [
    (Within, "Train 'inner' is called without its argument 'train', which stays False"),
    (Cached, "module has ['Cache'], expected Param and BatchStat"),
    (Net(rngs=nnx.Rngs(0)), "make, expected a function of rngs that returns an nnx"),
    (lambda rngs: nn.Dense(3), "that returns an nnx module: "),
    (
        lambda rngs: nnx.Dropout(0.5, rngs=rngs),
        "Dropout: 0 parameters, expected",
    ),
]


@pytest.mark.parametrize("make, said", REFUSED, ids=[said for _, said in REFUSED])
def test_a_module_is_refused_in_one_line(make, said):
    example = jax.ShapeDtypeStruct((1, 3), jnp.float32)
    refused(lambda: Model.from_nnx(make, example), said)


def test_attention_and_embeddings_are_counted_by_hand():
    class Block(nnx.Module):
        def __init__(self, rngs):
            self.table = nnx.Embed(11, 8, rngs=rngs)
            sizes = {"qkv_features": 6, "decode": False, "use_bias": False}
            self.attend = nnx.MultiHeadAttention(2, 8, **sizes, rngs=rngs)
            self.mix = nnx.Einsum("btd,dk->btk", (8, 4), rngs=rngs)

        def __call__(self, x):
            return self.mix(self.attend(self.table(x))).mean(1)

    counted = Model.from_nnx(Block, jax.ShapeDtypeStruct((1, 5), jnp.int32)).macs
    # Five positions; 8 x 6 for each projection; scores count for no leaf.
    kernels = {k: v["kernel"] for k, v in counted["attend"].items()}
    assert kernels == dict.fromkeys(("query", "key", "value", "out"), 5 * 48)
    assert counted["mix"]["kernel"] == 5 * 32
    assert counted["table"]["embedding"] == 0


def counts(forward, x, **params):
    params = {k: jnp.ones(v, jnp.float32) for k, v in params.items()}
    return multiply_adds.count(forward, params, x)


def test_programs_with_loops_branches_and_joined_kernels():
    x = jnp.ones((1, 3))

    def joined(p, x):  # [3, 2] and [3, 4] as one kernel; a transposed one
        y = x @ jnp.concatenate([p["a"], p["b"]], 1)
        return y @ p["c"].T

    assert counts(joined, x, a=(3, 2), b=(3, 4), c=(5, 6)) == {"a": 6, "b": 12, "c": 30}

    def branches(p, x):
        one, other = (lambda v: v @ p["a"]), (lambda v: (v @ p["a"]) @ p["b"])
        return jax.lax.cond(x.sum() > 0, one, other, x)

    said = "cond over parameters, expected no branch"
    refused(lambda: counts(branches, x, a=(3, 3), b=(3, 3)), said)

    def loop(p, x):
        return jax.lax.while_loop(lambda v: v.sum() < 9, lambda v: v @ p["a"], x)

    refused(lambda: counts(loop, x, a=(3, 3)), "while over parameters")

    def grouped(p, x):
        return jax.lax.conv_general_dilated(
            x, p["a"], (1, 1), "VALID", feature_group_count=2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )  # fmt: skip

    # Two by two positions, 3 x 3 x 1 inputs for each of the four outputs.
    assert counts(grouped, jnp.ones((1, 4, 4, 2)), a=(3, 3, 1, 4)) == {"a": 4 * 36}
