"""PQSU: the filters that stay, the uploads and the messages."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sparsefl_jax import models
from sparsefl_jax.algorithms import pqsu
from sparsefl_jax.algorithms.pqsu import _unpack, filters_left, keep_filters
from sparsefl_jax.core.types import Batches, SparseModel
from sparsefl_jax.sparsity import masks
from sparsefl_jax.testing import small_world
from sparsefl_jax.wire.packets import Packet
from tests.reference import by_hand
from tests.reference.by_hand import KEY, bits, context, mean_of, model_of, same

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.slow
def test_filters_with_the_largest_norm_stay():
    shape, widths = (28, 28, 1), (6, 5, 7)
    model = models.build("lenet5_caffe", 10, shape, widths=widths)
    rng, (shapes, _) = np.random.default_rng(0), jax.eval_shape(model.init, KEY)
    params = jax.tree.map(lambda v: np.float32(rng.normal(size=v.shape)), shapes)
    mask = keep_filters(params, 0.5)
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
    told = filters_left(mask)
    jax.tree.map(np.testing.assert_array_equal, told, kept)


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


def made(**kwargs):
    macs = {"fc1": {"kernel": 1}, "fc2": {"kernel": 1}}  # only the names are read
    model = model_of(mean_of(lambda p, x: jnp.sum(p["w"]) + x[:, 0]), macs)
    return pqsu(model, lambda round: optax.sgd(1.0), density=0.5, **kwargs)


# Each step takes 1 from both weights, that is 2 from the loss: from 20 on, 20, 18, 16,
# 14. Rows 1, 2, 6: an epoch's mean is (2 a + 1 + 2 + (a - 2) + 6) / 3 from loss a.
@pytest.mark.parametrize(
    ("epochs", "before", "loss"),
    [(1, np.inf, 67 / 3), (2, np.inf, 55 / 3), (2, 18.4, 55 / 3), (2, 18.3, None)],
)
def test_the_last_epochs_loss_decides(epochs, before, loss):
    method = made(quantize="none")
    kept, rows = jnp.float32(before), [1.0, 2.0, 6.0, np.nan]
    (uplink, kept, told), ctx = one_client(method, kept, rows, epochs)
    sent = loss is not None
    assert all(bool(p.sent) == sent for p in uplink.values())
    assert bits(uplink) == 2 + 64 * sent  # two flags and two weights
    assert float(told["uploaded"]) == sent and float(told["count"]) == 3 * epochs
    assert float(kept) == pytest.approx(loss if sent else before)
    assert uplink["weights"].values["w"].tolist() == [10.0 - 2 * epochs] * 2
    summand = method.contribute(ctx, uplink)
    assert float(summand["weight"]) == sent
    assert float(summand["sum"][0]["w"][0]) == sent * (10 - 2 * epochs)
    server = SparseModel({"w": jnp.full(2, 7.0)}, None, {})
    new, _ = method.aggregate(KEY, by_hand.server_context(), server, summand)
    assert new.params["w"].tolist() == [10.0 - 2 * epochs if sent else 7.0] * 2


def test_a_client_that_diverged_does_not_count():
    method, kept = made(quantize="none"), jnp.float32(1e9)
    (uplink, kept, _), ctx = one_client(method, kept, [np.nan] * 4, 2)
    assert not any(p.sent for p in uplink.values()) and np.isfinite(kept)
    assert not jax.tree.leaves(method.contribute(ctx, uplink))[0].any()


def test_bits_of_an_uplink():
    """Two weights of 32 bits, or codes of 8 and their grid: a scale and a zero.

    A selective upload has a flag for each of its three packets.
    """
    kept, rows = jnp.float32(np.inf), [1.0, 2.0, 6.0, 0.0]
    for quantize, selective, sent in (
        ("none", False, 64),
        ("up", True, 16 + 64 + 3),
        ("both", False, 16 + 64),
    ):
        method = made(quantize=quantize, selective=selective, weighting="examples")
        (uplink, *_), ctx = one_client(method, kept, rows, 1)
        assert bits(uplink) == sent
        assert float(method.contribute(ctx, uplink)["weight"]) == 3  # samples


@pytest.mark.parametrize(("quantize", "bits_down"), [("up", 32), ("both", 8)])
def test_bits_of_a_downlink_and_what_a_client_receives(quantize, bits_down):
    """Eight of 16 units: 8 x 8 + 8 + 8 x 4 + 4 weights, and a bit for each unit."""
    model = small_world.tiny_model()
    method = pqsu(model, None, density=0.5, quantize=quantize)
    server = method.init(KEY, masks.dense(*model.init(KEY)))
    down = method.broadcast(KEY, context(), server)
    grids = 4 * 64 * (quantize == "both")
    assert bits(down) == 108 * bits_down + grids + 16 + 32 * 16
    assert bits(method.broadcast(KEY, context(1, 0), server)) == bits(down) - 16
    got, kept = _unpack(down), np.abs(server.params["fc1"]["kernel"]).sum(0)
    kept = kept >= np.sort(kept)[-8]
    same(got.mask["fc1"]["bias"], kept)
    step = np.ptp(np.asarray(server.params["fc1"]["kernel"])) / 255
    wrong = np.abs(got.params["fc1"]["kernel"] - server.params["fc1"]["kernel"]).max()
    assert wrong == 0 if quantize == "up" else 0 < wrong <= 0.501 * step
