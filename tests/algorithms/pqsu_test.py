"""PQSU: the filters that stay, the uploads, the messages, and learning."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sparsefl_jax import models
from sparsefl_jax.algorithms import pqsu
from sparsefl_jax.algorithms.pqsu import Client
from sparsefl_jax.core.types import Batches, SparseModel
from sparsefl_jax.sparsity import filters
from sparsefl_jax.wire.packets import Packet
from tests.reference.by_hand import KEY, bare, bits, context, model_of, server_context

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.slow
def test_filters_with_the_largest_norm_stay():
    shape, widths = (28, 28, 1), (6, 5, 7)
    model = models.build("lenet5_caffe", 10, shape, widths=widths)
    rng, (shapes, _) = np.random.default_rng(0), jax.eval_shape(model.init, KEY)
    params = jax.tree.map(lambda v: np.float32(rng.normal(size=v.shape)), shapes)
    mask = filters.largest(params, 0.5)
    kept = {}
    for name in ("conv1", "conv2", "fc1"):
        kernel = np.asarray(params[name]["kernel"])
        columns = np.abs(kernel.reshape(-1, kernel.shape[-1])).sum(0)
        count = -(-columns.size // 2)  # 3 of 6, 3 of 5, 4 of 7
        kept[name] = np.isin(np.arange(columns.size), np.argsort(columns)[-count:])
        assert kept[name].sum() == count
    images, pixels = kept["conv1"], np.tile(kept["conv2"], 16)  # 4x4 positions
    want = {
        "conv1": np.ones((5, 5, 1, 1), bool) & images,
        "conv2": images[:, None] & kept["conv2"] & np.ones((5, 5, 1, 1), bool),
        "fc1": pixels[:, None] & kept["fc1"],
        "fc2": kept["fc1"][:, None] & np.ones(10, bool),
    }
    for name, expected in want.items():
        np.testing.assert_array_equal(mask[name]["kernel"], expected)
        if "bias" in mask[name]:  # fc1 has none
            biases = kept.get(name, np.ones(10, bool))
            np.testing.assert_array_equal(mask[name]["bias"], biases)
    told = filters.kept(mask)
    jax.tree.map(np.testing.assert_array_equal, told, kept)


@pytest.mark.slow
def test_blocks_keep_their_width():
    block = {
        "conv1": {"kernel": jnp.ones((3, 3, 4, 8))},
        "bn1": {"scale": jnp.ones(8), "bias": jnp.ones(8)},
        "conv2": {"kernel": jnp.ones((3, 3, 8, 8))},
        "shortcut": {"kernel": jnp.ones((1, 1, 4, 8))},
    }
    stem, head = jnp.ones((3, 3, 3, 4)), jnp.ones((8, 10))
    params = {"conv1": {"kernel": stem}, "block": block, "fc": {"kernel": head}}
    mask = filters.largest(params, 0.5)
    want = jax.tree.map(lambda v: np.ones(v.shape, bool), params)
    want["block"]["conv1"]["kernel"][..., 4:] = False
    want["block"]["conv2"]["kernel"][:, :, 4:] = False
    jax.tree.map(np.testing.assert_array_equal, mask, want)


def test_refuses():
    params = {"fc1": {"kernel": jnp.ones((2, 2))}, "fc2": {"kernel": jnp.ones((2, 2))}}
    for renamed, prunable, said in (
        ({"head": params["fc1"]} | params, ("*kernel",), "layer 'head', expected"),
        (params, ("fc2/*",), r"prunable=\('fc2/\*',\), expected the kernel of a hid"),
        ({"fc1": params["fc1"]}, ("*kernel",), "expected the kernel of a hidden"),
    ):
        with pytest.raises(ValueError, match=said):
            pqsu(bare(renamed), None, density=0.5, prunable=prunable)


def one_client(method, kept, rows, epochs):
    """Returns the uplink of a client whose loss is its two weights plus its rows."""
    weights = {"w": jnp.full((2,), 10.0, jnp.float32)}
    downlink = {
        "weights": Packet(weights, {"w": jnp.ones(2, bool)}, index="none"),
        "stats": Packet({}),
    }
    order = jnp.tile(jnp.arange(4, dtype=jnp.int32).reshape(1, 2, 2), (epochs, 1, 1))
    weight = jnp.ones(order.shape).at[:, 1, 1].set(0.0)  # three samples
    x = jnp.asarray(rows, jnp.float32)[:, None]
    data = Batches(x, jnp.zeros(4, jnp.int32), order, weight, jnp.int32(2))
    ctx = context(size=3)
    return method.update(jax.random.key(0), ctx, downlink, kept, data), ctx


def loss_fn(key, params, stats, x, y, weight):
    del key, y
    losses = jnp.where(weight > 0, jnp.sum(params["w"]) + x[:, 0], 0.0)
    count, total = jnp.sum(weight), jnp.sum(losses)
    sums = {"loss": total, "correct": jnp.float32(0), "count": count}
    return total / jnp.maximum(count, 1), (stats, sums)


def made(**kwargs):
    macs = {"fc1": {"kernel": 1}, "fc2": {"kernel": 1}}  # only the names are read
    model = model_of(loss_fn, macs)
    return pqsu(model, lambda round: optax.sgd(1.0), density=0.5, **kwargs)


# Each step takes 1 from both weights, that is 2 from the loss: from 20 on, 20, 18, 16,
# 14. Rows 1, 2, 6: an epoch's mean is (2 a + 1 + 2 + (a - 2) + 6) / 3 from loss a.
@pytest.mark.parametrize(
    ("epochs", "before", "loss"),
    [(1, np.inf, 67 / 3), (2, np.inf, 55 / 3), (2, 18.4, 55 / 3), (2, 18.3, None)],
)
def test_the_last_epochs_loss_decides(epochs, before, loss):
    method = made(quantize="none")
    kept, rows = Client(jnp.float32(before)), [1.0, 2.0, 6.0, np.nan]
    (uplink, kept, told), ctx = one_client(method, kept, rows, epochs)
    sent = loss is not None
    assert all(bool(p.sent) == sent for p in uplink.values())
    assert bits(uplink) == 2 + 64 * sent  # two flags and two weights
    assert float(told["uploaded"]) == sent and float(told["count"]) == 3 * epochs
    assert float(kept.loss) == pytest.approx(loss if sent else before)
    assert uplink["weights"].values["w"].tolist() == [10.0 - 2 * epochs] * 2
    summand = method.contribute(ctx, uplink)
    assert float(summand["weight"]) == sent
    assert float(summand["sum"][0]["w"][0]) == sent * (10 - 2 * epochs)
    server = SparseModel({"w": jnp.full(2, 7.0)}, None, {})
    new, _ = method.aggregate(KEY, server_context(), server, summand)
    assert new.params["w"].tolist() == [10.0 - 2 * epochs if sent else 7.0] * 2


def test_a_client_that_diverged_does_not_count():
    method, kept = made(quantize="none"), Client(jnp.float32(1e9))
    (uplink, kept, _), ctx = one_client(method, kept, [np.nan] * 4, 2)
    assert not any(p.sent for p in uplink.values()) and np.isfinite(kept.loss)
    assert not jax.tree.leaves(method.contribute(ctx, uplink))[0].any()


def test_bits_of_an_uplink():
    """Two weights of 32 bits, or codes of 8 and their grid: a scale and a zero.

    A selective upload has a flag for each of its three packets.
    """
    kept, rows = Client(jnp.float32(np.inf)), [1.0, 2.0, 6.0, 0.0]
    for quantize, selective, sent in (
        ("none", False, 64),
        ("up", True, 16 + 64 + 3),
        ("both", False, 16 + 64),
    ):
        method = made(quantize=quantize, selective=selective, weighting="examples")
        (uplink, *_), ctx = one_client(method, kept, rows, 1)
        assert bits(uplink) == sent
        assert float(method.contribute(ctx, uplink)["weight"]) == 3  # samples
