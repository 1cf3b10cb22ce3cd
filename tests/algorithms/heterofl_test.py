"""HeteroFL and FedRolex: the loss, the channels of a round, what travels and stays."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.algorithms import fedrolex, heterofl
from sparsefl_jax.core.types import Batches, EmptyState
from sparsefl_jax.models import build
from sparsefl_jax.sparsity import masks
from sparsefl_jax.training import local
from sparsefl_jax.wire import packets
from tests.reference import by_hand
from tests.reference.by_hand import close, context, merged, one_client, same
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
    ctx, data = context(size=2, budget=0.5), by_hand.batches(1, np.ones(4))
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
        return one_client(method, server, ctx, by_hand.batches(1, np.ones(5)))[:2]

    down, up = map(packets.layout, jax.eval_shape(one_round, KEY))
    assert down["static"].bits == 0
    assert len(jax.tree.leaves(down["static"].values)) == kept
    for message in (down, up):
        assert len(jax.tree.leaves(message["stats"].values)) == sent
    assert "static" not in up


def one_round(method, server, round):
    """Returns the server after a round of two clients."""
    sent = []
    for index, budget in enumerate((0.5, 0.3)):
        ctx = context(round, index=index, size=12, budget=budget)
        batches = data((0, 2) if index else (2, 1))
        sent.append((ctx, one_client(method, server, ctx, batches)[1]))
    return merged(method, server, *sent, round=round)[0]


def rolled(params, shift):
    """Rolls all hidden channels; the input and the classes stay."""

    def roll(name, leaf, value):
        inputs, outputs = name != "fc1", name != "fc3"
        axes = [0] * (inputs and leaf == "kernel") + [value.ndim - 1] * outputs
        return jnp.roll(value, shift, axes) if axes else value

    return {n: {k: roll(n, k, v) for k, v in p.items()} for n, p in params.items()}


def test_a_round_is_heterofls_on_rolled_channels():
    round, (model, sparse) = 13, network()  # of 8 and 6 channels
    ours, theirs = fedrolex(model, OPTIMIZER), heterofl(model, OPTIMIZER)
    new = one_round(ours, ours.init(KEY, sparse), round)
    turned = sparse._replace(params=rolled(sparse.params, -round))
    want = one_round(theirs, theirs.init(KEY, turned), round)
    close(new.model.params, rolled(want.params, round))


def test_what_no_client_has_sent_stays_and_is_told():
    """Clients add 1 to what they receive."""
    model, sparse = network(widths=(6, 6))
    method = fedrolex(model, OPTIMIZER, mask_classes=False)

    def added(packet):
        values = jax.tree.map(jnp.add, packet.values, packet.mask)
        return replace(packet, values=values)

    @jax.jit
    def play(server, round):
        ctx = context(budget=0.5)._replace(round=round)
        down = method.broadcast(KEY, ctx, server)
        up = {name: added(down[name]) for name in ("params", "stats")}
        return method.aggregate(
            KEY, by_hand.server_context(round), server, method.contribute(ctx, up)
        )

    server, counts = method.init(KEY, sparse), np.zeros((6, 6))
    for round in range(8):  # a full turn, and more
        server, told = play(server, jnp.int32(round))
        units = np.isin(range(6), [(round + i) % 6 for i in range(3)])
        counts += np.outer(units, units)
    same(server.trained["fc2"]["kernel"], counts > 0)
    sent = sum(int(leaf.sum()) for leaf in jax.tree.leaves(server.trained))
    size = sum(leaf.size for leaf in jax.tree.leaves(sparse.params))
    assert float(told["untouched"]) == pytest.approx(1 - sent / size)
    old, new = sparse.params["fc2"]["kernel"], server.model.params["fc2"]["kernel"]
    np.testing.assert_allclose(new - old, counts, atol=1e-5)
    same(new[counts == 0], old[counts == 0])
    assert (counts == 0).sum() == 6  # opposite units never meet


@pytest.mark.parametrize(
    ("factory", "inputs"), [(heterofl, [0, 1, 2, 3]), (fedrolex, [6, 7, 0, 1])]
)
def test_personal_models_are_the_slices_of_the_last_round(factory, inputs):
    model, sparse = network()
    method, info = factory(model, OPTIMIZER), context(budget=0.5).client
    server = method.init(KEY, sparse)
    if factory is fedrolex:
        server = server._replace(round=jnp.int32(6))
    mine = method.personalize(KEY, server, EmptyState(), info)["personal"]
    kept = np.outer(np.isin(range(8), inputs), np.arange(6) < 3)
    same(mine.mask["fc2"]["kernel"], kept)
    same(mine.params["fc2"]["kernel"], sparse.params["fc2"]["kernel"] * kept)


RELEASED = {"variant": "preactivation", "norm": "static", "init": "torch"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        (10, (11_172_170, 2_796_714, 701_018, 176_178, 44_510)),
        (100, (11_218_340, 2_819_844, 712_628, 182_028, 47_480)),
    ],
)
def test_parameters_of_the_papers_slices(classes, expected):
    """The paper normalises 512 channels at the end, instead of 64 at the beginning."""
    model = build("resnet18", classes, (32, 32, 3), **RELEASED)
    method = fedrolex(model, OPTIMIZER)

    @jax.jit
    def entries(budget):
        params, stats = jax.tree.map(jnp.zeros_like, model.shapes())
        server = method.init(KEY, masks.dense(params, stats))
        down = method.broadcast(KEY, context(500, budget=budget), server)
        return packets.count(down)["params"].entries

    for number, rate in zip(expected, (1, 1 / 2, 1 / 4, 1 / 8, 1 / 16), strict=True):
        found = int(entries(jnp.float32(rate)).sum())
        assert found == number - 2 * (512 - 64) * rate
