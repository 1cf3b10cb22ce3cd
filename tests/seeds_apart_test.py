"""Seeds that cannot share a program: each reason is told, and they run in turn."""

import jax
import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax import models
from sparsefl_jax.runs import lockstep
from sparsefl_jax.runs.config import defaults, fields
from sparsefl_jax.runs.plan import checks
from sparsefl_jax.runs.setup import make
from tests.refusals import refused
from tests.seeds_together_test import MODEL, X, data, no_pages, run, stages

pytestmark = pytest.mark.usefixtures(no_pages.__name__)


@sfl.method
def called_back(model, optimizer):
    """FedAvg that calls the host, which XLA cannot map."""
    base = sfl.fedavg(model, optimizer)

    def aggregate(key, round, server, total):
        shape = jax.ShapeDtypeStruct((), np.float32)
        jax.pure_callback(lambda: np.float32(0), shape, vmap_method=None)
        own = jax.random.key_data(key)  # a round's number is the same for all seeds
        jax.experimental.io_callback(lambda k: None, None, own, ordered=True)
        return base.aggregate(key, round, server, total)

    return base._replace(aggregate=aggregate)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "settings", "why"),
    [
        (called_back, {}, "stage 0: "),
        (
            sfl.spafl,
            {"client_store": "host"},
            "clients' states of stage 0 live on the host",
        ),
    ],
)
def test_what_cannot_go_together_says_why_and_runs(
    tmp_path, capsys, method, settings, why
):
    for folder in (None, tmp_path / "run"):
        found = run(stages(1, method), workdir=folder, progress=True, **settings)
        assert [len(one.metrics) for one in found] == [2, 2]
        said = [x for x in capsys.readouterr().err.splitlines() if "one after" in x]
        assert len(said) == 1
        assert said[0].startswith(f"seeds run one after another: {why}")


@pytest.mark.parametrize(
    ("change", "settings", "why"),
    [
        ({}, {}, "a CPU gains nothing"),
        ({"x": X[:80]}, {}, "the data of the seeds differ in shape"),
        ({"mean": (0.5,)}, {}, "the data of the seeds differ in mean"),
        ({}, {"memory_gb": 2e-5}, "stage 0 of 2 seeds does not fit the memory"),
        ({}, {"system": sfl.make_system("iot", 8)}, "each seed has a clock of its own"),
    ],
)
def test_seeds_that_cannot_go_together_are_told(change, settings, why):
    setups = [make(stages(1), MODEL, data(0), **settings) for _ in range(2)]
    setups[1] = setups[1]._replace(data=data(0)._replace(**change))
    asked = bool(change or settings)
    with pytest.raises(lockstep.ApartError, match=why):
        lockstep.compiled(setups, checks.run(setups[0]), asked=asked)


@pytest.mark.slow
def test_by_itself_only_with_as_many_clients_at_a_time_as_alone(monkeypatch):
    """As on an accelerator, whose memory has a limit."""
    monkeypatch.setattr(lockstep, "_refusal", lambda *arguments: "")
    monkeypatch.setattr(models.programs, "in_turn", lambda *network: False)
    one = make(stages(1), MODEL, data(0), devices=jax.devices()[:1], memory_gb=1.0)

    def compiled(setup, asked):
        setups = [setup, setup._replace(data=setup.data)]
        programs = lockstep.compiled(setups, checks.run(setup), asked=asked)
        return programs.memory(0)

    alone, both = checks.run(one)[0].memory, compiled(one, asked=False)
    assert both.chunk == alone.chunk == 3  # the whole cohort
    assert both.fixed == {name: 2 * size for name, size in alone.fixed.items()}
    states = both.fixed["clients"] + both.fixed["server"]
    assert both.working_set >= states  # copied before and after a segment
    tight = one._replace(memory_gb=(both.total() - 1) / 1e9)
    with pytest.raises(lockstep.ApartError, match="stage 0 of 2 seeds fits the memory"):
        compiled(tight, asked=False)
    assert compiled(tight, asked=True).chunk < 3


def test_a_choice_that_has_no_effect_or_does_not_exist_is_refused():
    config = defaults.default_config()
    config.seeds_together = "yes"
    refused(lambda: fields.check(config), "expected with it seeds of at least 2")
    config.seeds_together = "maybe"
    refused(lambda: fields.check(config), "seeds_together='maybe'")
    refused(lambda: run(stages(1), seeds_together="maybe"), "seeds_together='maybe'")
