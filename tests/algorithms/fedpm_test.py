"""FedPM: the constants, the merge, and what clients keep."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.algorithms import fedpm
from sparsefl_jax.algorithms.fedpm import Server, signed_constants
from sparsefl_jax.sparsity import masks
from sparsefl_jax.training import local
from sparsefl_jax.wire import packets
from tests.reference.by_hand import bare, merged


def test_constants_have_the_size_of_the_fan_in(key):
    shapes = {
        "conv": {"kernel": (5, 5, 3, 64), "bias": (64,)},
        "bn": {"scale": (64,), "bias": (64,)},
        "fc": {"kernel": (100, 7)},
    }
    params = jax.tree.map(jnp.zeros, shapes, is_leaf=lambda s: type(s) is tuple)
    frozen = signed_constants(key, params)
    for layer, name, fan_in in (
        ("conv", "kernel", 75), ("conv", "bias", 75), ("fc", "kernel", 100)
    ):  # fmt: skip
        leaf = np.asarray(frozen[layer][name])
        assert leaf.shape == shapes[layer][name]
        np.testing.assert_allclose(np.abs(leaf), 2.718281828 / math.sqrt(fan_in), 1e-6)
        assert 0.3 < np.mean(leaf > 0) < 0.7
    assert (frozen["bn"]["scale"] == 1).all() and (frozen["bn"]["bias"] == 0).all()


def test_initial_weights_are_masked_and_stay(key):
    params = {"fc": {"kernel": jnp.arange(1.0, 201.0).reshape(20, 10)}}
    method = fedpm(bare(params), None, weights="initial")
    server = method.init(key, masks.dense(params, {}))
    kept = method.deploy(key, server)["global"].params["fc"]["kernel"]
    assert 0.3 < np.mean(kept != 0) < 0.7
    np.testing.assert_array_equal(kept[kept != 0], params["fc"]["kernel"][kept != 0])


def test_a_leaf_that_is_no_kernel_is_refused(key):
    params = {"embed": {"table": jnp.zeros(3)}, "fc": {"kernel": jnp.zeros((3, 2))}}
    with pytest.raises(ValueError, match="leaf 'embed/table', expected"):
        fedpm(bare(params), None).init(key, masks.dense(params, {}))


def test_merge_by_hand():
    old = {"fc": {"kernel": jnp.array([[5.0], [6.0], [7.0]])}}
    method = fedpm(bare(old), None, epsilon=0.1)
    server = Server(old, old, {"mean": jnp.float32(3.0)})
    sent = []
    for mask, mean in (([1, 1, 0], 1.0), ([1, 0, 0], 2.0), ([1, 0, 0], 6.0)):
        mask = {"fc": {"kernel": jnp.array(mask, bool)[:, None]}}
        uplink = {
            "mask": packets.Packet(mask, bits=1, index="entropy"),
            "stats": packets.Packet({"mean": jnp.float32(mean)}),
        }
        sent.append((None, uplink))
    new, told = merged(method, server, *sent, round=4)
    # Votes of 0.1 and 0.9: means of 0.9, 1.1 / 3 and 0.1.
    want = np.log([9.0, 1.1 / 1.9, 1 / 9])
    np.testing.assert_allclose(new.scores["fc"]["kernel"][:, 0], want, rtol=1e-5)
    assert new.stats["mean"] == 3.0 and new.frozen is old
    assert float(told["unanimous"]) == pytest.approx(2 / 3)


def test_a_forgetful_client_keeps_nothing():
    params = {"fc": {"kernel": jnp.zeros((3, 2)), "bias": jnp.zeros(2)}}
    parts = bare(params), local.make_optimizer("adam")
    method, kept = fedpm(*parts, keep_optimizer=False), fedpm(*parts)
    server = method.init(jax.random.key(0), masks.dense(params, {}))
    assert not jax.tree.leaves(method.first_state(None, server, None))
    sizes = [v.size for v in jax.tree.leaves(kept.first_state(None, server, None))]
    assert sum(sizes) == 2 * 8 + 1  # Adam's moments and its count, no weights
