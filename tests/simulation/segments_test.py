"""How a stage is cut into segments changes neither its records nor its kept masks."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.runs import plan as planning
from sparsefl_jax.runs import setup as setups
from tests.runs.seeds_test import MODEL, data

METHOD = sfl.spdst(MODEL, sfl.training.make_optimizer(learning_rate=0.1))
WHOLE = sfl.fedpm(MODEL, sfl.training.make_optimizer("adam"))
DRAWN = WHOLE.replace(aggregate=lambda key, ctx, server, total: (server, {}))


def rounds_of(seconds, monkeypatch, method=METHOD, **settings):
    """Returns the segments of six rounds that may take some seconds."""
    monkeypatch.setattr(planning, "_SECONDS", seconds)
    stages, key = [sfl.Stage(method, 6, 3, batch_size=8)], jax.random.key(0)
    return sfl.segments(key, stages, MODEL, data(0), eval_every=4, **settings)


@pytest.mark.parametrize("method", [METHOD, DRAWN], ids=lambda method: method.name)
def test_the_length_of_segments_changes_no_result(monkeypatch, method):
    """Evaluations, and the masks that are kept, are after rounds 4 and 6.

    FedPM draws a mask for each, another one also if the server stays as it was.
    """
    one, long = (list(rounds_of(s, monkeypatch, method)) for s in (1e-9, 4.0))
    assert [s.snapshot.round for s in one] == [1, 2, 3, 4, 5, 6]
    assert [s.snapshot.round for s in long] == [4, 6]
    assert sum((s.records for s in one), []) == sum((s.records for s in long), [])
    kept = [
        {s.snapshot.round: s.mask for s in told if s.mask is not None}
        for told in (one, long)
    ]
    assert [*kept[0]] == [4, 6]
    states = [(told[-1].snapshot.state, told[-1].models) for told in (one, long)]
    jax.tree.map(np.testing.assert_array_equal, *kept)
    jax.tree.map(np.testing.assert_array_equal, *states)
    masks = [s.models["global"].mask["fc1"]["kernel"] for s in long]
    assert np.array_equal(*masks) == (method is METHOD)


@pytest.mark.parametrize(
    ("platform", "log", "length"),
    [
        ("gpu", 10**2, 10),  # up to the evaluation
        ("gpu", 10**6, 4),  # three clients' logs of four rounds: 1 % of 1.2 GB
        ("cpu", 10**6, 10),
    ],
)
def test_an_accelerators_segments_are_as_long_as_their_logs_fit(platform, log, length):
    how = dict(eval_every=10, memory_gb=1.2, client_store="device")
    devices = [SimpleNamespace(platform=platform)]
    stages = [sfl.Stage(METHOD, 20, 3)]
    setup = setups.Setup(stages, MODEL, data(0), devices=devices, **how)
    assert planning.pace(setup, 0, {}, log) == (length, None, "device")
    for limit, want in (("accuracy", length), ("gbit", 1), ("pflop", 1), ("hours", 1)):
        # Costs are known after a round has run.
        limited = setup._replace(until=setups.Limits(**{limit: 0.5}))
        assert planning.pace(limited, 0, {}, log).length == want
