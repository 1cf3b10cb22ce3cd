"""PruneFL beyond the contract: the greedy rule, when it acts, what travels, the end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.algorithms import prunefl, prunefl_initial
from sparsefl_jax.algorithms.prunefl import make_rule
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.training import local
from tests.reference import by_hand
from tests.reference.by_hand import KEY, batches, context, linear_loss, model_of
from tests.reference.prunefl_by_hand import greedy

SELECT = {"a": True, "b": False, "c": True}
SHAPES = {"a": (5, 8), "b": (3,), "c": (30,)}


def drawn(seed, density, coarse):
    """Returns a model and squared gradients; coarse ones are integers with ties."""
    rng = np.random.default_rng(seed)
    weights = {k: rng.normal(size=s) for k, s in SHAPES.items()}
    squared = {k: rng.exponential(size=s) ** 2 for k, s in SHAPES.items()}
    if coarse:
        weights = {k: np.round(2 * w) for k, w in weights.items()}
        squared = {k: np.round(2 * g) for k, g in squared.items()}
    mask = {k: (rng.random(s) < density) | (k == "b") for k, s in SHAPES.items()}
    params = {k: np.where(mask[k], w, 0) for k, w in weights.items()}
    params, squared = (jax.tree.map(np.float32, t) for t in (params, squared))
    return SparseModel(params, mask, {}), squared


@pytest.mark.parametrize(
    ("times", "constant", "max_density"),
    [
        ((1.0, 1.0), 0.0, 1.0),
        ((4.0, 0.5), 16.0, 1.0),
        ((1.0, 2.0), 256.0, 0.4),
        ((1.0, 1.0), 1e9, 0.75),
    ],
)
def test_the_rule_is_the_greedy_loop(times, constant, max_density):
    rule = jax.jit(make_rule(SELECT, 0.3, times, constant, max_density))
    limits = {"times": times, "constant": constant, "cap": int(max_density * 70)}
    sizes = set()
    for seed in range(12):
        model, squared = drawn(seed, (1.0, 0.5, 0.1)[seed % 3], coarse=seed % 2)
        new = jax.device_get(rule(model, squared, np.float32(seed % 5 / 5)))
        trees = model.params, model.mask, squared
        layers = [[tree[k] for k in "ac"] for tree in trees]
        rate, dense = 0.3 * 0.5 ** (seed % 5 / 5), squared["b"].sum()
        want = greedy(*layers, rate=rate, dense=dense, **limits)
        for k, mask in zip("ac", want, strict=True):
            np.testing.assert_array_equal(new.mask[k], mask)
            kept = np.where(mask, model.params[k], 0)
            np.testing.assert_array_equal(new.params[k], kept)
        assert new.mask["b"].all()
        np.testing.assert_array_equal(new.params["b"], model.params["b"])
        sizes.add(sum(m.sum() for m in want))
    assert len(sizes) > 1


def test_the_largest_density_is_meant_as_it_is_written():
    """0.29 * 100 is 28.999999999999996 in float64; all 100 are worth a place."""
    rule = make_rule({"w": True}, 1.0, None, 1e9, 0.29)
    new = jax.jit(rule)(model(100, 100), {"w": jnp.ones(100)}, jnp.float32(0))
    assert int(new.mask["w"].sum()) == 29


def model(width=40, alive=40):
    mask = {"w": jnp.arange(width) < alive}
    return SparseModel({"w": jnp.where(mask["w"], 5.0, 0.0)}, mask, {})


def linear_method(every):
    """Returns PruneFL on eight weights, half of them alive, and its first server."""
    method = prunefl(
        model_of(linear_loss, {"w": 1}, {"w": jnp.zeros(8)}),
        local.make_optimizer(learning_rate=0.01),
        reconfigure_every=every,
        prunable=("w",),
        max_density=0.5,
        constant_time=1e6,
    )
    return method, method.init(None, model(width=8, alive=4))


def test_squared_gradients_are_of_the_rounds_since_the_last_reconfiguration():
    """Three steps of gradient 2 add 36 to the client's 100, or to 0 in a new window."""
    method, server = linear_method(every=2)
    data = batches(3, np.full(8, 2.0))

    @jax.jit
    def told(round, last):
        ctx = context(round, last)
        down = method.broadcast(KEY, ctx, server)
        up, kept, _ = method.update(KEY, ctx, down, {"w": jnp.full(8, 100.0)}, data)
        return up["squared_gradients"].sent, kept["w"]

    for round, last, due, total in (
        (0, -1, False, 136),
        (1, 0, False, 136),
        (2, 1, True, 136),
        (3, 2, False, 36),
        (3, -1, False, 36),
        (4, 3, True, 136),
        (6, 4, True, 36),
    ):
        sent, kept = told(round, last)
        assert sent == due
        np.testing.assert_allclose(kept, total, rtol=1e-5)


def test_the_mask_after_that_and_the_weight_of_what_grew():
    method, server = linear_method(every=1)
    rows = jnp.array([1.0, 0.5, 0.2, 0.1, 0.3, 0.3, 0.3, 2.0]) ** 2
    weights = {"w": jnp.array([5.0, 4.0, 3.0, 2.0, 0, 0, 0, 0])}
    total = {
        "mean": {"sum": (weights, {}), "weight": jnp.float32(1)},
        "squared": {"sum": {"w": rows}, "weight": jnp.float32(1)},
    }
    new, _ = method.aggregate(None, by_hand.server_context(7), server, total)
    alive = [True, True, True, False, False, False, False, True]
    assert new.model.mask["w"].tolist() == alive and new.changed_at == 8
    assert new.model.params["w"].tolist() == [5, 4, 3, 0, 0, 0, 0, 0]
    total["squared"]["weight"] = jnp.float32(0)
    new, _ = method.aggregate(None, by_hand.server_context(7), server, total)
    assert new.model.mask["w"].tolist() == [True] * 4 + [False] * 4
    assert new.changed_at == 0


@pytest.mark.parametrize(
    ("settings", "iterations", "alive"),
    [
        # 28, 20, 14, 10, 7, 5, 4, 3 and 3 five times more; that is 13 cuts.
        ({"reconfigure_every": 2, "start_accuracy": 0.0}, 25, 3),
        # Two steps of 0.1: below 4.25 from the iteration with index 4 on.
        ({"max_iterations": 4}, 4, 40),
    ],
)
def test_when_the_initial_pruning_starts_and_ends(settings, iterations, alive):
    given = {"num_batches": 2, "prunable": ("w",)} | settings
    parts = model_of(linear_loss, {"w": 1}), local.make_optimizer()
    method = prunefl_initial(*parts, **given)
    down = method.broadcast(None, context(), method.init(None, model()))
    data = batches(3, np.ones(40))  # one batch more than are used
    up, _, metrics = jax.jit(method.update)(KEY, context(), down, (), data)
    assert metrics["iterations"] == iterations
    assert metrics["count"] == 4 * iterations
    assert int(up["weights"].mask["w"].sum()) == alive
    # What is alive went on training: 0.1 a step.
    kept = up["weights"].values["w"][up["weights"].mask["w"]]
    np.testing.assert_allclose(kept, 5 - 0.2 * iterations, atol=1e-4)
