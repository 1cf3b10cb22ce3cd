"""FjORD beyond the contract: widths, statistics and the teacher."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.algorithms import fjord
from sparsefl_jax.core.types import EmptyState
from sparsefl_jax.models import build
from sparsefl_jax.sparsity import masks
from sparsefl_jax.testing import small_world
from sparsefl_jax.training import local
from tests.reference.by_hand import batches, bits, close, context, merged, one_client

KEY, RATE, STEPS = jax.random.key(0), 0.1, 40
GRID = (0.4, 0.6, 0.5, 1.0)  # in any order
OPTIMIZER = local.make_optimizer("sgd", learning_rate=RATE)
TINY = small_world.tiny_model()  # 8 features, 16 units, statistics of the units
UNITS = {0.4: 7, 0.5: 8, 0.6: 10, 1.0: 16}


def start():
    return masks.dense(*TINY.init(KEY))


def data(steps=STEPS):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2 * steps, 8)), rng.integers(4, size=2 * steps)
    return batches(steps, np.ones(8))._replace(x=jnp.float32(x), y=jnp.int32(y))


def recording(seen, model=TINY):
    """Returns a network that records the hidden units of its parameters."""

    def apply(params, *rest, **options):
        units = jnp.sum(jnp.any(params["fc1"]["kernel"] != 0, 0))
        jax.debug.callback(lambda n: seen.append(int(n)), units, ordered=True)
        return model.apply(params, *rest, **options)

    return model._replace(apply=apply)


@pytest.mark.parametrize("budget, largest", [(0.7, 0.6), (0.1, 0.4)])
def test_every_minibatch_draws_a_width_within_the_budget(budget, largest):
    seen = []
    method = fjord(recording(seen), OPTIMIZER, widths=GRID)
    server = method.init(KEY, start())
    _, up, metrics = jax.jit(
        lambda: one_client(method, server, context(budget=budget), data())
    )()
    jax.effects_barrier()
    allowed = {UNITS[p] for p in GRID if p <= largest}
    assert len(seen) == STEPS and set(seen) == allowed
    # 40 draws; five standard deviations below the expected share
    assert min(seen.count(n) for n in allowed) >= STEPS / len(allowed) - 5 * 2.8
    alive = np.asarray(up["params"].mask["fc1"]["kernel"].all(0))
    np.testing.assert_array_equal(alive, np.arange(16) < UNITS[largest])
    rows = up["stats"].mask["mean"].sum(1)  # each width in the budget has its own
    assert rows.tolist() == [UNITS[p] * (p <= largest) for p in sorted(GRID)]
    share = 2 * sum(seen) / 16
    assert float(metrics["work"].forward["fc1"]["kernel"]) == pytest.approx(share)
    assert float(metrics["count"]) == 2 * STEPS and "seen" not in metrics


def test_a_width_for_a_client_and_round():
    seen, drawn = [], []
    method = fjord(recording(seen), OPTIMIZER, widths=GRID, draw="round")
    server, batches = method.init(KEY, start()), data(3)

    @jax.jit
    def one(key, budget):
        return one_client(method, server, context(size=6, budget=budget), batches, key)

    for key in jax.random.split(KEY, 24):
        seen.clear()
        down, up, metrics = one(key, jnp.float32(0.6))
        jax.effects_barrier()
        place = int(down["width"].values)
        assert seen == [UNITS[sorted(GRID)[place]]] * 3
        drawn.append(place)
        assert int(up["params"].mask["fc1"]["kernel"].any(0).sum()) == seen[0]
        assert float(metrics["work"].forward["fc2"]["kernel"]) == 6 * seen[0] / 16
        # Only the statistics of the trained width travel.
        rows = np.asarray(down["stats"].mask["mean"].sum(1))
        np.testing.assert_array_equal(rows, seen[0] * (np.arange(4) == place))
    assert set(drawn) == {0, 1, 2}
    weights = 8 * seen[0] + seen[0] + seen[0] * 4 + 4
    assert down["width"].bits == 2
    assert bits(down) == 32 * (weights + seen[0]) + 2


@pytest.mark.slow
@pytest.mark.parametrize("weighting, part", [("examples", 3), ("uniform", 1)])
def test_the_mean_is_over_those_who_sent_an_entry(weighting, part):
    method = fjord(TINY, OPTIMIZER, widths=GRID, weighting=weighting)
    server, sent = method.init(KEY, start()), []
    one = jax.jit(lambda ctx, key: one_client(method, server, ctx, data(3), key)[1])
    for budget, size in ((1.0, 6), (0.5, 2)):
        ctx = context(size=size, budget=budget)
        sent.append((ctx, one(ctx, jax.random.key(size))))
    new, _ = merged(method, server, *sent)
    (first, rows_one), (second, rows_two) = (
        (up["params"].values, up["stats"].values) for _, up in sent
    )
    got, one, two = (p["fc1"]["kernel"] for p in (new.params, first, second))
    assert not np.allclose(one[:, :8], two[:, :8], atol=1e-4)
    mean = (part * one + two) / (part + 1)
    np.testing.assert_allclose(got[:, :8], mean[:, :8], atol=1e-6)
    np.testing.assert_allclose(got[:, 8:], one[:, 8:], atol=1e-6)
    both = (part * rows_one["mean"] + rows_two["mean"])[1, :8] / (part + 1)
    np.testing.assert_allclose(new.stats["mean"][1, :8], both, atol=1e-6)
    np.testing.assert_allclose(new.stats["mean"][3], rows_one["mean"][3], atol=1e-6)
    np.testing.assert_array_equal(new.stats["mean"][0, 7:], server.stats["mean"][0, 7:])


def test_the_teacher_is_the_largest_width():
    """Both hidden units are 1. Class 0 has the odds 2 * 2, and 2 in the half.

    Of the label 0 and two samples, the whole learns 1 - 4/5 and the half, where it is
    drawn, 4/5 - 2/3.
    """
    model, head = build("mlp", 2, (1,), widths=(2,)), [[np.log(2), 0.0]] * 2
    params = {
        "fc1": {"kernel": jnp.zeros((1, 2)), "bias": jnp.ones(2)},
        "fc2": {"kernel": jnp.array(head), "bias": jnp.zeros(2)},
    }
    method = fjord(model, OPTIMIZER, widths=(0.5, 1.0), distill=True)
    server = method.init(KEY, masks.dense(params, {}))
    client = functools.partial(one_client, method, server, context(), batches(1, [1.0]))
    _, up, metrics = jax.jit(jax.vmap(client))(jax.random.split(KEY, 6))
    units = np.asarray(metrics["work"].forward["fc1"]["kernel"])
    assert set(units) == {2 + 1, 2 + 2}  # both passes of two samples, by width
    slope = 1 / 5 + np.where(units == 3, 2 / 15, 0)
    new = up["params"].values["fc2"]
    signs = np.array([1, -1])
    close(new["bias"], RATE * slope[:, None] * signs)
    close(new["kernel"][:, 0], head[0] + RATE * slope[:, None] * signs)
    close(new["kernel"][:, 1], np.tile(head[1] + RATE * signs / 5, (6, 1)))
    np.testing.assert_allclose(metrics["count"], 2)


def test_the_largest_width_is_the_headline():
    sparse = start()
    method = fjord(TINY, None, widths=(0.4, 0.6))
    server = method.init(KEY, sparse)
    server = server._replace(stats={"mean": server.stats["mean"].at[1].set(1.0)})
    models = method.deploy(KEY, server)
    assert list(models) == ["w0.6"]
    assert int(models["w0.6"].mask["fc1"]["kernel"].any(0).sum()) == 10
    assert float(models["w0.6"].stats["mean"].sum()) == 16
    info = context(budget=0.5).client
    mine = method.personalize(KEY, server, EmptyState(), info)["personal"]
    assert mine.mask["fc1"]["kernel"].any(0).tolist() == [True] * 7 + [False] * 9
    assert float(mine.stats["mean"].sum()) == 0


def test_refused_arguments():
    with pytest.raises(ValueError, match="distill=True, expected draw='batch'"):
        fjord(TINY, None, distill=True, draw="round")
    static = start()._replace(stats={"batch_mean": jnp.zeros(16)})
    with pytest.raises(ValueError, match="norm='static', expected 'batch' or None"):
        fjord(TINY, None).init(KEY, static)
