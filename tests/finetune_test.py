"""Fine-tuning: a client's steps by hand, what it is at rate 0, and what travels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.algorithms import fedavg, finetune
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.data import from_arrays
from sparsefl_jax.training import local
from tests.by_hand import bare, batches, bits, context
from tests.scaffold_test import ENTRIES, MODEL, PLAIN, RATE

COMMON = np.arange(1, ENTRIES + 1) * 1.0
MASK = np.array([True, False, True])


def tuned(target, optimizer=PLAIN, steps=3, rounds=1, **kwargs):
    """Returns the method, the server and a client's state after some rounds."""
    method = finetune(MODEL, optimizer, prunable=("w",), **kwargs)
    start = SparseModel({"w": jnp.float32(COMMON)}, {"w": jnp.array(MASK)}, {})
    server = method.init(None, start)
    client = method.first_state(None, server, None)
    for round in range(rounds):
        ctx = context(round, round - 1)
        down, data = method.broadcast(None, ctx, server), batches(steps, target)
        up, client, _ = method.update(jax.random.key(0), ctx, down, client, data)
        assert not down and not up
        total = method.contribute(ctx, up)
        server, _ = method.aggregate(None, jnp.int32(round), server, total)
    return method, server, client


@pytest.mark.parametrize(("scale", "rounds"), [(1.0, 1), (0.5, 1), (0.5, 2)])
def test_a_client_trains_within_the_mask(scale, rounds):
    target = np.array([5.0, 5.0, -2.0])
    method, server, client = tuned(target, scale=scale, rounds=rounds)
    v = np.where(MASK, COMMON, 0)
    for _ in range(3 * rounds):
        v = v - np.where(MASK, scale * RATE * (v - target), 0)
    own = method.personalize(None, server, client, None)["personal"]
    np.testing.assert_allclose(own.params["w"], v, rtol=1e-6)
    np.testing.assert_array_equal(own.mask["w"], MASK)
    common = method.deploy(None, server)["global"]
    np.testing.assert_array_equal(common.params["w"], np.where(MASK, COMMON, 0))


def test_at_a_rate_of_zero_and_before_its_round_a_client_has_the_common_model():
    still = local.make_optimizer("sgd", learning_rate=0.0)
    for kwargs in ({"optimizer": still}, {"scale": 0.0}, {"rounds": 0}):
        method, server, client = tuned(np.zeros(ENTRIES), **kwargs)
        own = method.personalize(None, server, client, None)["personal"]
        jax.tree.map(np.testing.assert_array_equal, own, server)


@pytest.mark.parametrize(
    ("kept", "index", "positions"),
    [
        (8, "packed", 4),  # how many of eight: 0 to 8
        (8, "bitmap", 8),
        (2, "packed", 4 + 7),  # 8 H(1/4) = 6.49
        (2, "bitmap", 8),
    ],
)
def test_the_model_goes_down_once_with_its_mask(kept, index, positions):
    params = {"fc": {"kernel": np.ones((4, 2)), "bias": np.ones(2)}}
    mask = {"fc": {"kernel": jnp.arange(8).reshape(4, 2) < kept, "bias": None}}
    mask["fc"]["bias"] = jnp.ones(2, bool)
    method = finetune(bare(params), PLAIN, index=index)
    stats = {"mean": jnp.zeros(3)}
    start = SparseModel(jax.tree.map(jnp.float32, params), mask, stats)
    down = method.handed(method.init(None, start))
    assert bits(down) == 32 * (kept + 2 + 3) + positions


@pytest.mark.slow
def test_as_a_last_stage_at_rate_zero_every_client_has_the_common_accuracy():
    rng, own = np.random.default_rng(0), np.arange(5).repeat(8)
    y = rng.integers(3, size=len(own))
    x = np.float32(rng.normal(size=(len(own), 6)) + y[:, None])
    users = {"users": own, "users_test": own}
    data = from_arrays(x, y, x_test=-x, y_test=y, partition="natural", **users)
    model = sfl.models.build("mlp", 3, (6,), widths=(4,))
    optimizer = local.make_optimizer(learning_rate=0.1)
    first = sfl.Stage(fedavg(model, optimizer), 2, 3, batch_size=4)
    found = {}
    for scale in (0.0, 1.0):
        last = sfl.Stage(finetune(model, optimizer, scale=scale), 1, 5, epochs=4)
        run = sfl.run(jax.random.key(0), [first, last], model, data, metric="clients")
        common, tuned = (
            [r for r in run.metrics if r["stage"] == s][-1] for s in (0, 1)
        )
        assert all(
            r["bits_up"] == 0
            for r in run.metrics
            if r.get("stage") == 1 and "bits_up" in r
        )
        found[scale] = common["accuracy"], tuned["accuracy"]
    assert found[0.0][0] == found[0.0][1]
    assert found[1.0][0] == found[0.0][0] != found[1.0][1]
