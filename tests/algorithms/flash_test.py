"""FLASH beyond the contract: timing of surgery, presets of the configs."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sparsefl_jax.algorithms import flash, nst, pdst
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.sparsity import masks
from sparsefl_jax.training import local
from sparsefl_jax.wire.packets import pack_up
from tests.reference.by_hand import (
    KEY,
    bare,
    batches,
    context,
    linear_loss,
    mean_of,
    model_of,
)

ONES = np.ones(40)


def model():
    mask = {"w": jnp.arange(40) < 20}
    weights = jnp.where(mask["w"], 5.0 + jnp.arange(40, dtype=jnp.float32), 0.0)
    return SparseModel({"w": weights}, mask, {})


def trained(tx, data, loss=linear_loss, rate=0.5, decays=False):
    """Returns what a client of this model learns with surgery."""
    learn = flash.learner(loss, {"w": True}, 0.5, rate, decays)
    return learn(jax.random.key(0), tx, model(), data)


@pytest.mark.parametrize(
    ("epochs", "steps", "own", "rates"),
    [
        (1, 16, 16, [0.25 * 7 / 16]),  # once, after the step with index 8 of 16
        (1, 16, 5, [0.25 * 2 / 5]),  # after index 2 of the client's own 5
        (1, 1, 1, [0.0]),
        (4, 2, 2, [0.1875, 0.125, 0.0625]),  # after every epoch but the last
    ],
)
def test_when_and_at_what_rate_masks_change(monkeypatch, epochs, steps, own, rates):
    """Every surgery and every step has a key of its own, and is charged at its mask."""
    seen, at, keys = [], [], []

    def record(key, params, mask, rate, *, select, carry):
        now = rate, params["w"][0], jax.random.key_data(key)

        def write(rate, weight, key):
            seen.append(float(rate))
            at.append(round(10 * float(5.0 - weight)))  # steps that moved it by 0.1
            keys.append(tuple(np.asarray(key).tolist()))

        jax.debug.callback(write, *now, ordered=True)
        return params, {"w": jnp.arange(40) < jnp.sum(mask["w"]) - 4}, carry

    def loss(key, *rest):
        now = jax.random.key_data(key)
        jax.debug.callback(lambda k: keys.append(tuple(np.asarray(k).tolist())), now)
        return linear_loss(key, *rest)

    monkeypatch.setattr(flash.regrow, "prune_regrow", record)
    data = batches(steps, ONES, epochs=epochs, own=own)
    done = trained(optax.sgd(0.1), data, loss, 0.25, True)
    jax.effects_barrier()
    assert seen == pytest.approx(rates)
    made = [own // 2 + 1] if epochs == 1 else [own * (e + 1) for e in range(epochs - 1)]
    assert at == made
    if own == steps:  # a padded step has no effect
        assert len(set(keys)) == len(keys) == epochs * steps + len(rates)
    assert float(done.metrics["count"]) == epochs * own * 2
    # Every step moved by 0.1 what is still alive, four fewer after each surgery.
    moved, left = model().params["w"] - done.model.params["w"], 20 - 4 * len(rates)
    np.testing.assert_allclose(moved[:left], 0.1 * epochs * own, atol=1e-5)
    lengths = np.diff([0, *made, epochs * own])
    samples = sum(2 * n * (20 - 4 * i) / 40 for i, n in enumerate(lengths))
    assert done.metrics["work"].forward["w"] == pytest.approx(samples)
    sorting = 40 * np.log2(41)
    assert done.metrics["work"].extra == pytest.approx(len(rates) * sorting)


def test_surgery_takes_the_smallest_and_grows_zeros_without_momentum_from_before():
    """Of three steps with gradient 1, rate 0.1 and momentum 0.5: 0.1 (1 + 1.5 + 1.75).

    A gradient that the mask had let through in the three steps before would add more.
    """
    before = model()
    done = trained(optax.sgd(0.1, momentum=0.5), batches(3, ONES, epochs=2))
    params, mask = done.model.params["w"], np.asarray(done.model.mask["w"])
    lost = np.flatnonzero(np.asarray(before.mask["w"]) & ~mask)
    # The smallest half of the alive weights, unless they grew again at once.
    assert lost.size and lost.max() < 10
    grown = mask & ~np.asarray(before.mask["w"])
    assert grown.any() and not params[~mask].any()
    np.testing.assert_allclose(params[grown], -0.425, rtol=1e-6)
    assert done.metrics["work"].extra > 0


def test_a_client_of_nst_trains_what_its_own_mask_keeps():
    """The gradient of (sum w)^2 / 2 is the sum of the weights: its own, not all."""
    loss = mean_of(lambda params, x: jnp.sum(params["w"]) ** 2 / 2)
    optimizer = local.make_optimizer("sgd", learning_rate=0.1)
    options = {"density": 0.5, "prunable": ("w",), "prune_rate": 0.0}
    method = nst(model_of(loss, {"w": 1}), optimizer, **options)
    whole = jnp.ones(40, bool)
    received = SparseModel({"w": jnp.arange(1.0, 41.0)}, {"w": whole}, {})
    down = pack_up(received, received.mask, {"w": True}, index="bitmap")
    own = {"w": jnp.arange(40) < 4}
    up, kept, _ = method.update(KEY, context(), down, own, batches(1, ONES))
    want = np.zeros(40)
    want[:4] = np.arange(1, 5) - 0.1 * 10
    want[0] = 0
    np.testing.assert_allclose(up["weights"].values["w"], want, atol=1e-6)
    np.testing.assert_array_equal(up["weights"].mask["w"], kept["w"])


@pytest.mark.parametrize(("allocation", "whole"), [("erk", True), ("uniform", False)])
def test_the_mask_of_pdst_has_the_densities_of_its_allocation(allocation, whole):
    """By ERK a is 50 times as dense as b: 1 and 296 / 10000, not 1.47 and 0.029."""
    kernels = {"a": jnp.ones((2, 2)), "b": jnp.ones((100, 100))}
    model = bare({name: {"kernel": kernel} for name, kernel in kernels.items()})
    method = pdst(model, local.make_optimizer(), density=0.03, allocation=allocation)
    start = masks.dense(*model.init(KEY))
    mask = method.init(KEY, start).model.mask
    assert mask["a"]["kernel"].all() == whole and not mask["b"]["kernel"].all()
