"""Schedules by name, and optimizers and schedules of a user's own module."""

import sys

import numpy as np
import pytest

from sparsefl_jax.config.build import build_optimizer
from sparsefl_jax.config.changes import keep_schedule
from sparsefl_jax.config.defaults import default_config, freeze, override, plain
from sparsefl_jax.runs.folder import own_code
from tests.refusals import refused

OWN = """
import jax.numpy as jnp
import optax

def halving(learning_rate, rounds, *, every: int):
    return lambda round: learning_rate * 0.5 ** (round // every)

def broken(learning_rate, rounds):
    return lambda round: jnp.where(round < 3, learning_rate, jnp.nan)

def signs(learning_rate, *, scale: float = 1.0):
    return optax.chain(optax.scale_by_sign(), optax.scale(-learning_rate * scale))
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_training.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("own_training", None)


def made(**given):
    config = default_config(num_rounds=8)
    override(config, {"optimizer.learning_rate": "0.8"} | given)
    return freeze(config)


def rates(given, rounds):
    flags = {f"schedule.{key}": value for key, value in given.items()}
    optimizer = build_optimizer(made(**flags))
    return [optimizer.rate(round) for round in rounds]


def test_rates_by_hand():
    cosine = 0.4 * (1 + np.cos(np.pi * np.arange(8) / 8))
    np.testing.assert_allclose(rates({"name": "cosine"}, range(8)), cosine, 1e-5)
    rise = [1 / 3, 2 / 3, *[1] * 6]
    fall = rise * (0.2 + 0.3 * (1 + np.cos(np.pi * np.arange(8) / 8)))
    warm = {"name": "cosine", "warmup": "2", "final": "0.2"}
    np.testing.assert_allclose(rates(warm, range(8)), fall, 1e-5)
    steps = {"name": "step", "at": "(3, 5)", "factor": "0.5", "warmup": "2"}
    drops = [0.8 / 3, 1.6 / 3, 0.8, 0.4, 0.4, 0.2, 0.2]
    np.testing.assert_allclose(rates(steps, range(7)), drops, 1e-5)
    flat = {"name": "constant", "warmup": "2"}
    np.testing.assert_allclose(rates(flat, range(4)), drops[:3] + [0.8], 1e-5)


@pytest.mark.parametrize(
    "given, said",
    [
        ({"schedule.name": "cosin"}, "schedule.name='cosin' (did you mean"),
        ({"schedule.warmup": "2"}, "schedule.name is missing"),
        ({"schedule.name": "cosine", "schedule.warmup": "8"}, "schedule.warmup=8"),
        ({"schedule.name": "step", "schedule.at": "(9,)"}, "schedule.at=9, expected"),
        ({"schedule.name": "step"}, "missing a required argument: 'at'"),
        (
            {"schedule.name": "cosine", "final_learning_rate": "0.1"},
            "final_learning_rate=0.1 has no effect here: schedule.name is 'cosine'",
        ),
        ({"schedule.name": "own_training:broken"}, "a rate=nan, expected a finite"),
        (
            {"optimizer.name": "own_training:halving"},
            "positional argument: 'rounds'",
        ),
        ({"optimizer.name": "own_training:nothing"}, "no attribute 'nothing'"),
    ],
)
def test_bad_settings_are_named(own, given, said):
    refused(lambda: build_optimizer(made(**given)), said)


def test_an_own_schedule_and_optimizer(own):
    halving = {"schedule.name": "own_training:halving", "schedule.every": "2"}
    signs = {"optimizer.name": "own_training:signs", "optimizer.scale": "3.0"}
    optimizer = build_optimizer(made(**halving, **signs))
    assert [optimizer.rate(t) for t in (0, 1, 2, 5)] == [0.8, 0.8, 0.4, 0.2]
    tx, zeros = optimizer(2), np.zeros(2, np.float32)
    updates, _ = tx.update(np.float32([5, -0.1]), tx.init(zeros), zeros)
    np.testing.assert_allclose(updates, [-1.2, 1.2], 1e-6)
    (path,) = own_code(plain(made(**halving, **signs)))
    assert path.endswith("own_training.py")


def test_a_longer_run_keeps_the_horizon_of_its_schedule():
    old = made(**{"schedule.name": "cosine"})
    new = default_config(num_rounds=16)
    override(new, {"optimizer.learning_rate": "0.8", "schedule.name": "cosine"})
    kept = keep_schedule(freeze(new), plain(old))
    assert (kept.num_rounds, kept.lr_horizon) == (16, 8)
    np.testing.assert_allclose(build_optimizer(kept).rate(4), 0.4, 1e-5)
    override(new, {"schedule.name": "none"})
    assert build_optimizer(freeze(new)).rate(4) == 0.8
