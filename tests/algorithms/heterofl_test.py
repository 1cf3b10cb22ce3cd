"""HeteroFL beyond the contract: its loss, its statistics, its bits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.algorithms import heterofl
from sparsefl_jax.core.types import Batches, EmptyState
from sparsefl_jax.models import build
from sparsefl_jax.sparsity import masks
from sparsefl_jax.training import local
from sparsefl_jax.wire import packets
from tests.reference.by_hand import batches as equal_batches
from tests.reference.by_hand import context, merged, one_client
from tests.simulation.recalibrate_test import make

KEY, RATE = jax.random.key(0), 0.1
OPTIMIZER = local.make_optimizer(
    "sgd", learning_rate=RATE, momentum=0.9, weight_decay=5e-4, clip=1.0
)
WIDTHS, CLASSES = (8, 6), 4


@functools.cache
def network(**kwargs):
    model = build("mlp", CLASSES, (2, 2, 1), **{"widths": WIDTHS} | kwargs)
    return model, masks.dense(*model.init(KEY))


def data(labels=(0, 2)):
    """Returns 12 samples in three batches, and a row of padding of another class."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(13, 2, 2, 1)).astype(np.float32)
    y = np.append(np.resize(labels, 12), 3).astype(np.int32)
    order = jnp.arange(12, dtype=jnp.int32).reshape(1, 3, 4)
    return Batches(
        jnp.asarray(x), jnp.asarray(y), order, jnp.ones((1, 3, 4)), jnp.int32(3)
    )


def first_round(method, model, budget, batches):
    ctx = context(size=12, budget=budget)
    return one_client(method, method.init(KEY, model), ctx, batches)


@pytest.mark.parametrize(
    "option, share, others",
    [
        ({}, 2 / (2 + 3), 0),
        ({"scaler": False}, 2**0.5 / (2**0.5 + 3), 0),
        ({"mask_classes": False}, 2 / (2 + 3 * np.exp(14)), -1 / 3),
    ],
)
def test_the_loss_takes_classes_that_a_client_lacks_as_zeros(option, share, others):
    """Half of two units, 1 / .5: logits of log 2, and 14 for classes that it lacks."""
    model = build("mlp", CLASSES, (4,), widths=(2,))
    head = jnp.array([[np.log(2) / 2, 7.0, 7.0, 7.0]] * 2)
    params = {
        "fc1": {"kernel": jnp.zeros((4, 2)), "bias": jnp.ones(2)},
        "fc2": {"kernel": head, "bias": jnp.zeros(CLASSES)},
    }
    method = heterofl(model, local.make_optimizer(learning_rate=RATE), **option)
    server = method.init(KEY, masks.dense(params, {}))
    ctx, data = context(size=2, budget=0.5), equal_batches(1, np.ones(4))
    _, up, metrics = jax.jit(lambda: one_client(method, server, ctx, data))()
    # Two samples of class 0, whose share of the odds it is.
    assert float(metrics["loss"]) == pytest.approx(-2 * np.log(share))
    bias = up["params"].values["fc2"]["bias"]
    moves = RATE * np.array([1 - share, others, others, others])
    np.testing.assert_allclose(bias, moves, rtol=1e-5)


@pytest.mark.slow
def test_columns_of_absent_classes_stay_and_the_rest_is_their_holders_mean():
    model, sparse = network()
    method = heterofl(model, OPTIMIZER)
    server, sent = method.init(KEY, sparse), []
    for budget, labels in ((1.0, (0, 2)), (0.5, (2, 1))):
        _, up, _ = first_round(method, sparse, budget, data(labels))
        sent.append((context(size=12, budget=budget), up))
    new, _ = merged(method, server, *sent)
    old, head = sparse.params["fc3"]["kernel"], new.params["fc3"]["kernel"]
    one, two = (up["params"].values["fc3"]["kernel"] for _, up in sent)
    np.testing.assert_array_equal(head[:, 3], old[:, 3])
    np.testing.assert_allclose(head[:, 0], one[:, 0], atol=1e-6)
    np.testing.assert_allclose(head[:3, 1], two[:3, 1], atol=1e-6)
    np.testing.assert_array_equal(head[3:, 1], old[3:, 1])
    np.testing.assert_allclose(head[:3, 2], (one + two)[:3, 2] / 2, atol=1e-6)
    np.testing.assert_allclose(head[3:, 2], one[3:, 2], atol=1e-6)


@pytest.mark.parametrize("norm, sent, kept", [("static", 0, 4), ("batch", 4, 0)])
def test_static_statistics_do_not_travel(norm, sent, kept):
    model, ctx = make(norm), context(size=12, budget=0.5)
    method = heterofl(model, OPTIMIZER)

    def one_round(key):
        server = method.init(key, masks.dense(*model.init(key)))
        return one_client(method, server, ctx, equal_batches(1, np.ones(5)))[:2]

    down, up = map(packets.layout, jax.eval_shape(one_round, KEY))
    assert down["static"].bits == 0 and len(down["static"].paths) == kept
    assert len(down["stats"].paths) == len(up["stats"].paths) == sent
    assert "static" not in up


def test_personal_models_have_the_width_of_their_budget():
    model, sparse = network()
    method, info = heterofl(model, OPTIMIZER), context(budget=0.25).client
    server = method.init(KEY, sparse)
    mine = method.personalize(KEY, server, EmptyState(), info)["personal"]
    kept = np.outer(np.arange(8) < 2, np.arange(6) < 2)
    np.testing.assert_array_equal(mine.mask["fc2"]["kernel"], kept)
    wanted = sparse.params["fc2"]["kernel"] * kept
    np.testing.assert_array_equal(mine.params["fc2"]["kernel"], wanted)
