"""A point of a study sets its rounds by its budget before its first run; its page."""

import copy
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from sparsefl_jax.config.defaults import fill_in, plain
from sparsefl_jax.runs import experiment, fit_rounds
from sparsefl_jax.runs import folder as run_folder
from sparsefl_jax.studies import points as on_disk
from sparsefl_jax.studies import runner
from tests import tiny_study
from tests.refusals import refused


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Returns points with a budget; pilots find seven rounds, and runs are instant."""
    study, measured, real = [], [], fit_rounds.fit

    def fitted(config, build, progress):
        if not fit_rounds.budgets_of(config):
            return real(config, build)
        measured.append(config.algorithm.name)
        if config.algorithm.name == "fedpm":
            raise TypeError("no\nsuch method")
        config = copy.deepcopy(config)
        with config.ignore_type():
            config.num_rounds, config.fit.by = 7, "pilot"
        return config, "it pays for 7 rounds"

    def run_each(runs):
        for config, folder in runs:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.json").write_text(json.dumps(plain(fill_in(config))))
            (folder / "summary.json").write_text("{}")
            yield {"seed": config.seed}

    setup = SimpleNamespace(
        metric="pooled",
        stages=(),
        measure=None,
        data=SimpleNamespace(y=np.zeros(1, int)),
    )
    monkeypatch.setattr(experiment, "build", lambda config, started: (setup, None))
    monkeypatch.setattr(runner, "write_page", lambda *of: None)
    monkeypatch.setattr(fit_rounds, "fit", fitted)
    monkeypatch.setattr(experiment, "run_each", run_each)
    tiny_study.write_study(tmp_path)
    study = tiny_study.points(tmp_path, methods=("fedavg", "fedpm", "fedprox"))
    for point in study:
        point.config.fit.gbit = 1.0
    return study, measured


def test_a_point_measures_once_and_all_its_seeds_have_these_rounds(
    study, tmp_path, capsys
):
    (first, *_), measured = study
    out = tmp_path / "out"
    states = runner.run([first], out)
    assert states == {"fedavg": "done"} and measured == ["fedavg"]
    assert "fedavg: it pays for 7 rounds\n" in capsys.readouterr().err
    found = [json.loads(p.read_text()) for p in sorted(out.rglob("config.json"))]
    assert [(c["seed"], c["num_rounds"], c["fit"]["by"]) for c in found] == [
        (0, 7, "pilot"),
        (1, 7, "pilot"),
    ]
    # A seed that is left has the rounds of the one that ran.
    (out / "fedavg/seed_1/summary.json").unlink()
    (out / "fedavg/seed_1/config.json").unlink()
    (out / "fedavg/seed_1").rmdir()
    assert runner.run([first], out)["fedavg"] == "done" and measured == ["fedavg"]
    again = json.loads((out / "fedavg/seed_1/config.json").read_text())
    assert again["num_rounds"] == 7
    first.config.fit.gbit = 2.0
    with pytest.raises(ValueError, match=r"fit.gbit is 1.0 there and 2.0 here"):
        runner.run([first], out)


def test_a_pilot_that_fails_costs_its_point_alone(study, tmp_path, capsys):
    points, measured = study
    states = runner.run(points, tmp_path / "out")
    assert measured == ["fedavg", "fedpm", "fedprox"]
    reason = "failed: the budget: no such method"
    assert states == {"fedavg": "done", "fedpm": reason, "fedprox": "done"}
    said = capsys.readouterr().err
    assert "fedpm failed: the budget: no such method\n" in said


def test_a_finished_point_stays_finished_if_only_what_is_free_has_changed(
    study, tmp_path
):
    (point, *_), _ = study
    for minutes in (10.0, 5.0):
        point.config.checkpoint_minutes = minutes
        states = runner.run([point], tmp_path / "out")
        assert states["fedavg"] == "done"
    (_, folder), *_ = on_disk.folders(tmp_path / "out", point)
    assert run_folder.read_config(folder).checkpoint_minutes == 10.0  # not again
    point.config.dataset = str(shutil.copy(tmp_path / "tiny.npz", tmp_path / "b.npz"))
    refused(lambda: runner.run([point], tmp_path / "out"), "dataset is")
