"""The number of rounds that a budget pays for, by hand."""

import json
import sys

import pytest
from absl import flags

from sparsefl_jax.runs import cli, experiment, fit_rounds
from sparsefl_jax.runs.config import fields, methods
from sparsefl_jax.runs.config.defaults import complete, default_config

WEIGHTS = 784 * 16 + 16 + 16 * 10 + 10  # of the MLP below
ROUND = 2 * 3 * 32 * WEIGHTS / 1e9  # Gbit: both ways, 3 clients, float32


def config(method="fedavg", density=None):
    """Returns a small configuration on embedded images."""
    config = default_config()
    config.dataset, config.model.name = "fashion_mnist_sample", "mlp"
    config.num_clients, config.cohort_size, config.num_rounds = 10, 3, 2
    config = complete(config)
    config.model.widths = (16,)
    return methods.choose(config, method, density)


@pytest.mark.parametrize(
    "rounds",
    [7.99, 8, *(pytest.param(r, marks=pytest.mark.slow) for r in (0.5, 1, 5000.5))],
)
def test_a_dense_budget_pays_for_whole_rounds(rounds):
    """Dense models cost the same in every round."""
    asked = config()
    asked.fit.gbit = rounds * ROUND
    if rounds < 1:
        with pytest.raises(ValueError, match="does not pay for one round"):
            fit_rounds.fitted(asked, experiment.build)
        return
    found, said = fit_rounds.fitted(asked, experiment.build)
    assert found.num_rounds == int(rounds)
    assert "by the exact plan" in said


def test_rounds_to_observe_may_lie_beyond_a_guess():
    asked = config()
    asked.fit.gbit, asked.num_rounds, asked.observe_rounds = 8 * ROUND, 20, (7,)
    seen = []

    def build(guess):
        seen.append((guess.num_rounds, guess.observe_rounds))
        return experiment.build(guess)

    found, _ = fit_rounds.fitted(asked, build)
    assert (found.num_rounds, found.observe_rounds) == (8, (7,))
    assert {observed for _, observed in seen} == {()}


def test_a_bound_is_refused_without_a_pilot():
    """The plan cannot know what JMWST's votes will cost."""
    asked = config("jmwst", 0.1)
    asked.fit.gbit = 0.01
    with pytest.raises(ValueError, match=r"fit\.gbit=0\.01: .*expected fit\.pilot=N"):
        fit_rounds.fitted(asked, experiment.build)
    asked.fit.gbit, asked.fit.pflop = None, 1.0
    with pytest.raises(ValueError, match=r"fit\.pflop=1: .*expected fit\.pilot=N"):
        fit_rounds.fitted(asked, experiment.build)


@pytest.mark.parametrize(
    "field, value", [("pilot", 3), ("most", 3), ("by", "plan"), ("measured", "much")]
)
def test_what_goes_with_a_budget_needs_one(field, value):
    """Alone it would have no effect."""
    asked = config()
    setattr(asked.fit, field, value)
    with pytest.raises(ValueError, match=rf"fit\.{field}={value!r} is read by nothing"):
        experiment.build(asked)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pdst", "fedsparsify_global", "jmwst"])
def test_a_run_spends_its_budget(method, tmp_path):
    """A fitted run costs at most a little more, and one more round would not fit."""
    asked = config(method, 0.2)
    asked.fit.gbit, asked.fit.pilot = 12 * ROUND, 4
    summary = experiment.run(asked, tmp_path / "run", progress=False)
    kept = json.loads((tmp_path / "run/config.json").read_text())
    rounds = kept["num_rounds"]
    spent = [s["bits_up"] + s["bits_down"] for s in summary["stages"]]
    assert 12 < rounds == summary["stages"][-1]["rounds"]
    budget, each = 12 * ROUND * 1e9, spent[-1] / rounds
    # What a pilot sees of masks that change is a sample, so leave it 2 %.
    assert sum(spent) < 1.02 * budget < sum(spent) + each + 0.04 * budget
    if "rounds" in kept["algorithm"]:  # its schedule spans the run
        assert kept["algorithm"]["rounds"] == rounds


def test_a_run_that_goes_on_keeps_its_rounds():
    """Started again, a budget is not measured again; another budget is."""
    asked, begun = config(), config()
    asked.fit.gbit = begun.fit.gbit = 3 * ROUND
    begun.num_rounds, begun.fit.by, begun.fit.measured = 77, "pilot", "much"
    fields.check(begun)
    kept = fit_rounds.kept(asked, begun)
    assert (kept.num_rounds, kept.fit.measured) == (77, "much")
    assert fit_rounds.fitted(begun, build=None) == (begun, "")
    asked.fit.gbit = 4 * ROUND
    assert fit_rounds.kept(asked, begun) is None


@pytest.mark.slow
def test_a_plan_alone_is_of_the_rounds_that_the_budget_pays_for(capsys):
    """`--dry_run` beside a budget."""
    asked = config()
    asked.fit.gbit = 3.5 * ROUND
    cli.dry_run(asked)
    said = capsys.readouterr().out
    assert "pays for 3 rounds, by the exact plan" in said
    assert f"{3 * ROUND * 1e3:.3g} Mbit" in said


@pytest.mark.parametrize("resume, by", [((), None), (("--resume",), "plan")])
def test_a_new_run_of_a_kept_configuration_fits_its_budget(
    tmp_path, monkeypatch, resume, by
):
    """What a run was fitted by holds for that run alone."""
    kept = config()
    kept.fit.gbit, kept.fit.by = 1.0, "plan"
    path = tmp_path / "config.json"
    path.write_text(kept.to_json_best_effort())
    argv = ["launch.py", f"--config={path}", "--config.fit.gbit=2.0", *resume]
    monkeypatch.setattr(sys, "argv", argv)
    values = flags.FlagValues()
    found = cli.define_config(values)
    flags.DEFINE_bool("resume", False, "", flag_values=values)
    values(argv)
    assert (found.value.fit.gbit, found.value.fit.by) == (2.0, by)


def test_fit_most_limits_the_rounds_and_saves_their_pilot(monkeypatch):
    """Ten dense rounds pay for 100 at a density of .1; five of them cost less."""
    asked = config("pdst", 0.1)
    asked.fit.gbit, asked.fit.pilot, asked.fit.most = 10 * ROUND, 4, 5
    monkeypatch.setattr(fit_rounds.pilot, "measure", None)  # must not be called
    found, said = fit_rounds.fitted(asked, experiment.build)
    assert (found.num_rounds, found.fit.by) == (5, "plan")
    assert said.endswith("pays for 5 rounds, by fit.most")


def test_a_pilot_says_that_it_trains(monkeypatch, capsys):
    """Also beside `--dry_run`."""
    asked = config("pdst", 0.1)
    asked.fit.gbit, asked.fit.pilot = 12 * ROUND, 4
    monkeypatch.setattr(fit_rounds.pilot.loop, "run_setup", None)  # nothing runs
    with pytest.raises(TypeError):
        cli.dry_run(asked)
    assert "pilot: trains 4 rounds" in capsys.readouterr().err


def test_observed_rounds_may_be_those_that_a_budget_will_set():
    asked = default_config()
    asked.fit.gbit, asked.observe_rounds = 1.0, (asked.num_rounds + 50,)
    fields.check(asked)
