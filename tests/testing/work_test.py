"""The work of masks that change in training; see `work_by_hand` for methods."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sparsefl_jax.algorithms.flash import surgery
from sparsefl_jax.core.types import Batches, SparseModel
from tests.algorithms.spafl_test import quiet_loss
from tests.reference.work_by_hand import same

WIDTH, ALIVE, LOST = 40, 20, 4
A_SURGERY = WIDTH * np.log2(WIDTH + 1)


def trained(monkeypatch, weight, **kwargs):
    """Returns the work of a client whose surgeries each exchange four weights."""

    def take(key, params, mask, rate, *, select, carry):
        kept = jnp.arange(WIDTH) < jnp.sum(mask["w"]) - LOST
        return params, {"w": kept, "b": mask["b"]}, carry

    monkeypatch.setattr(surgery.regrow, "prune_regrow", take)
    params = {"w": jnp.ones(WIDTH), "b": jnp.ones(3)}
    mask = {"w": jnp.arange(WIDTH) < ALIVE, "b": jnp.ones(3, bool)}
    weight = jnp.asarray(weight, jnp.float32)
    data = Batches(
        jnp.zeros((1, 1)),
        jnp.zeros(1, jnp.int32),
        jnp.zeros(weight.shape, jnp.int32),
        weight,
        jnp.int32(weight.shape[1] + 2),  # a longer client runs beside this one
    )
    learn = surgery.learner(quiet_loss, {"w": True, "b": False}, 0.5, 0.25, True)
    start = SparseModel(params, mask, {})
    done = learn(jax.random.key(0), optax.sgd(0.1), start, data, **kwargs)
    return done.metrics["work"]


def expected(parts, surgeries):
    """Thrice the samples times the share of w that was alive; all of b.

    Args:
      parts: (samples, weights alive) one after another.
      surgeries: how many there were.
    """
    tree = {
        "w": sum(n * alive / WIDTH for n, alive in parts),
        "b": float(sum(n for n, _ in parts)),
    }
    return tree, tree, tree, surgeries * A_SURGERY


FULL, PART, NONE = [1, 1], [1, 0], [0, 0]


@pytest.mark.parametrize(
    ("weight", "parts", "surgeries"),
    [
        # Once, after the step with index floor(5 / 2).
        ([[FULL, FULL, FULL, FULL, PART]], [(6, 20), (3, 16)], 1),
        ([[FULL, FULL, FULL, NONE, NONE]], [(4, 20), (2, 16)], 1),
        ([[PART, NONE]], [(1, 20)], 1),
        # After every epoch but the last.
        ([[FULL, PART]] * 3, [(3, 20), (3, 16), (3, 12)], 2),
        ([[FULL, PART, NONE]] * 2, [(3, 20), (3, 16)], 1),
    ],
)
def test_a_surgery_and_the_masks_on_both_sides_of_it(
    monkeypatch, weight, parts, surgeries
):
    same(trained(monkeypatch, weight), expected(parts, surgeries))


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_round_without_surgery_costs_none(monkeypatch, epochs):
    work = trained(monkeypatch, [[FULL, PART]] * epochs, when=jnp.bool_(False))
    same(work, expected([(3 * epochs, 20)], 0))
