"""How a stage is cut into segments changes neither its records nor its kept masks."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.runs import plan as planning
from sparsefl_jax.runs import setup as setups
from tests.runs.seeds_test import MODEL, data


def spdst():
    return sfl.spdst(MODEL, sfl.training.make_optimizer(learning_rate=0.1))


def rounds_of(seconds, monkeypatch, **settings):
    """Returns the segments of six rounds that may take some seconds."""
    monkeypatch.setattr(planning, "_SECONDS", seconds)
    stages, key = [sfl.Stage(spdst(), 6, 3, batch_size=8)], jax.random.key(0)
    return list(sfl.segments(key, stages, MODEL, data(0), **settings))


def kept(segments, owner="server"):
    return {s.snapshot.round: s.masks[owner] for s in segments if owner in s.masks}


def test_the_length_of_segments_changes_no_result(monkeypatch):
    """An evaluation after rounds 4 and 6, clients' masks of round 3."""
    how = dict(eval_every=4, observe_rounds=(3,))
    one, long = (rounds_of(s, monkeypatch, **how) for s in (1e-9, 4.0))
    assert [s.snapshot.round for s in one] == [1, 2, 3, 4, 5, 6]
    assert [s.snapshot.round for s in long] == [3, 4, 6]
    assert sum((s.records for s in one), []) == sum((s.records for s in long), [])
    for owner, rounds in (("server", [4, 6]), ("clients", [3])):
        pair = kept(one, owner), kept(long, owner)
        assert list(pair[0]) == rounds
        jax.tree.map(np.testing.assert_array_equal, *pair)
    last = one[-1], long[-1]
    states = (jax.tree.leaves((s.snapshot.state, s.models)) for s in last)
    jax.tree.map(np.testing.assert_array_equal, *states)
    with pytest.raises(ValueError, match="models of round 1 are asked for after the"):
        one[0].models  # noqa: B018


@pytest.mark.parametrize(
    ("platform", "log", "length"),
    [
        ("gpu", 10**2, 10),  # up to the evaluation
        ("gpu", 10**6, 4),  # three clients' logs of four rounds: 1 % of 1.2 GB
        ("cpu", 10**6, 10),
    ],
)
def test_an_accelerators_segments_are_as_long_as_their_logs_fit(platform, log, length):
    stage = sfl.Stage(spdst(), 20, 3)
    how = dict(eval_every=10, memory_gb=1.2, client_store="device")
    devices = [SimpleNamespace(platform=platform)]
    setup = setups.Setup([stage], MODEL, data(0), devices=devices, **how)
    assert planning.pace(setup, 0, {}, log) == (length, None, "device")
    late = setup._replace(until=setups.Limits(accuracy=0.5))
    assert planning.pace(late, 0, {}, log).length == length
    for cost in ("gbit", "pflop", "hours"):  # which are known after a round has run
        limited = setup._replace(until=setups.Limits(**{cost: 1.0}))
        assert planning.pace(limited, 0, {}, log).length == 1


def test_what_nobody_reads_is_not_deployed(monkeypatch):
    """It is evaluated after rounds 4 and 6; in each round two servers deploy."""
    method, seen = spdst(), []

    def deploy(key, server):
        jax.debug.callback(lambda: seen.append(1))
        return method.deploy(key, server)

    monkeypatch.setattr(planning, "_SECONDS", 1e-9)
    stages = [sfl.Stage(method.replace(deploy=deploy), 6, 3, batch_size=8)]
    how = dict(eval_every=4, devices=jax.devices()[:1])
    for segment in sfl.segments(jax.random.key(0), stages, MODEL, data(0), **how):
        jax.effects_barrier()
        assert len(seen) == 2 + (segment.snapshot.round in (4, 6))
        seen.clear()
