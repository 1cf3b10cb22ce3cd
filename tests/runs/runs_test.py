"""Seeds, limits, starting points, loading of runs, and errors."""

import csv
import json
import shutil
import subprocess
import sys
from functools import partial

import jax
import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.config import load_config
from sparsefl_jax.report import read_records
from sparsefl_jax.runs import checkpoint, experiment
from sparsefl_jax.simulation import placement
from tests.refusals import refused
from tests.tiny import tiny_config

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Makes a finished run of two seeds."""
    folder = tmp_path_factory.mktemp("finished")
    config = tiny_config(folder)
    config.seeds, config.seed, config.partition_seed = 2, 3, 0
    config.val_fraction = 0.2
    experiment.run(config, folder / "run", progress=False)
    return folder / "run"


@pytest.fixture
def config(finished):
    """Returns the configuration of the first of the two seeds."""
    return load_config(str(finished / "seed_3/config.json"))


def test_seeds_are_single_runs_and_their_mean(finished, config, tmp_path):
    config.seed = 4
    single = experiment.run(config, tmp_path / "a", progress=False)
    of_seed = json.loads((finished / "seed_4/summary.json").read_text())
    for summary in (single, of_seed):  # what is measured
        for name in ("seconds", "rounds_per_second", "memory"):
            del summary[name]
        for stage in summary["stages"]:
            del stage["compile_seconds"]
    assert single == of_seed
    finals = [
        json.loads((finished / f"seed_{s}/summary.json").read_text())["accuracy"]
        for s in (3, 4)
    ]
    (name,) = finals[0]
    finals = [f[name]["final"] for f in finals]
    (row,) = csv.DictReader((finished / "comparison.csv").open())
    assert row["seeds"] == "3 4"
    assert (finished / "report.html").exists()
    assert (finished / "figures/accuracy_by_gbit.svg").exists()
    assert float(row["accuracy"]) == pytest.approx(np.mean(finals))
    assert float(row["accuracy_std"]) == pytest.approx(np.std(finals, ddof=1))
    files = [np.load(finished / f"seed_{s}/partition.npy") for s in (3, 4)]
    np.testing.assert_array_equal(*files)  # partition_seed fixes it


def test_load_gives_metrics_and_the_best_models(finished):
    run = sfl.load_run(finished / "seed_3")
    assert run.metrics["train"]["loss"].shape == (5,)
    assert run.metrics["eval"]["models.global.accuracy"].shape == (3,)
    summary = json.loads((finished / "seed_3/summary.json").read_text())
    best = run.metrics["eval"]["val_accuracy"][1:].max()  # of the last stage
    assert summary["best"]["chosen_by"] == run.best.chosen_by == "validation"
    assert summary["best"]["score"] == best == run.best.score
    assert run.best.models.keys() == run.models.keys()
    with pytest.raises(ValueError, match="seed_N"):
        sfl.load_run(finished)


@pytest.mark.parametrize("what", ["model", "weights", "mask"])
def test_a_run_starts_from_what_another_left(finished, config, what):
    config.init_from, config.init_what = str(finished / "seed_3"), what
    config.first_stage, config.algorithm = {}, {"name": "spdst"}
    start = experiment.build(config).setup.initial
    old = sfl.load_run(finished / "seed_3").models["global"]
    kernel, mask = (t["fc1"]["kernel"] for t in (start.params, start.mask))
    theirs = old.params["fc1"]["kernel"]
    assert np.array_equal(mask, old.mask["fc1"]["kernel"]) == (what != "weights")
    assert np.array_equal(kernel, theirs) == (what != "mask")
    assert mask.all() == (what == "weights")
    assert np.asarray(kernel)[~old.mask["fc1"]["kernel"]].any() == (what == "mask")


def test_a_mask_that_would_be_drawn_anew_is_not_taken(finished, config):
    config.init_from, config.init_what = str(finished / "seed_3"), "mask"
    with pytest.raises(ValueError, match="draws a mask of its own"):
        experiment.build(config)  # whose first stage is the sensitivity warm-up
    config.init_what = "weights"
    experiment.build(config)


def test_a_start_that_does_not_fit_is_refused(finished, config, tmp_path):
    config.init_from, config.model.widths = str(finished / "seed_3"), (8,)
    with pytest.raises(ValueError, match=r"init_from=.*fc1/.* expected \("):
        experiment.build(config)
    config.init_from = str(tmp_path)
    with pytest.raises(ValueError, match="expected the directory of a finished run"):
        experiment.build(config)


def test_killed_in_its_first_checkpoint_a_run_still_starts_there(
    finished, config, tmp_path, monkeypatch
):
    config.init_from, config.checkpoint_minutes = str(finished / "seed_3"), 0.0
    config.first_stage, config.algorithm = {}, {"name": "spdst"}
    config.num_rounds = 2
    experiment.run(config, tmp_path / "whole", progress=False)

    def killed(*args, **kwargs):
        raise SystemExit

    monkeypatch.setattr(np, "savez", killed)
    with pytest.raises(SystemExit):
        experiment.run(config, tmp_path / "cut", progress=False)
    monkeypatch.undo()
    assert not (tmp_path / "cut/checkpoint.npz").exists()
    experiment.run(config, tmp_path / "cut", resume=True)
    assert records_of(tmp_path / "cut") == records_of(tmp_path / "whole")


def test_an_accuracy_ends_a_run_and_is_named(config, tmp_path):
    """An evaluation comes every two rounds of the second stage."""
    config.until.accuracy = 0.01
    told = experiment.run(config, tmp_path / "a", progress=False)
    assert (told["ended_by"], told["rounds"]) == ("accuracy", 3)
    records = records_of(tmp_path / "a")
    assert records[-1]["phase"] == "eval" and records[-1]["round"] == 2
    assert sum(r["phase"] == "train" for r in records) == 3


def records_of(run):
    return read_records(run / "metrics.jsonl")


def refuses(said, config, path, resume=False):
    """Checks that no run begins, or goes on, in a folder."""
    run = partial(experiment.run, config, path, resume=resume, progress=False)
    refused(run, said)


def test_a_directory_with_a_run_is_left_as_it_is(finished, config, tmp_path):
    run = finished / "seed_3"
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    refuses("--resume continues it", config, run)
    config.batch_size = 4
    for resume in (False, True):
        refuses("batch_size is 8 there and 4 here", config, run, resume)
    assert before == {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    refuses("no config.json, expected a run", config, tmp_path / "none", resume=True)
    assert not (tmp_path / "none").exists()
    (tmp_path / "metrics.jsonl").write_text("")
    refuses("holds metrics.jsonl, expected an empty", config, tmp_path)
    (tmp_path / "config.json").write_text("{")
    refuses("config.json cannot be read", config, tmp_path)


def test_a_run_that_goes_on_is_left_alone(finished, config):
    run = finished / "seed_3"
    hold = f"import fcntl, sys; f = open({str(run / 'lock')!r}, 'a'); "
    hold += "fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        refuses("still running", config, run, resume=True)
        process.stdin.close()
    assert experiment.run(config, run, resume=True, progress=False)["rounds"] == 5


@pytest.mark.parametrize("change", ["cut", "flip"])
def test_a_damaged_checkpoint_is_refused_in_one_line(finished, tmp_path, change):
    source = finished / "seed_3"
    data = (source / "checkpoint.npz").read_bytes()
    whole, refused = checkpoint.read(source), 0
    (run := tmp_path / "run").mkdir()
    for at in range(0, len(data), len(data) // 50):
        changed = bytearray(data[:at] if change == "cut" else data)
        if change == "flip":
            changed[at] ^= 0xFF
        (run / "checkpoint.npz").write_bytes(changed)
        try:  # some bytes, such as the date of a member, change nothing
            saved = checkpoint.read(run)
            assert saved.about == whole.about
            jax.tree.map(np.testing.assert_array_equal, saved.models, whole.models)
        except ValueError as error:
            assert "checkpoint.npz cannot be read: " in str(error), error
            assert "\n" not in str(error)
            refused += 1
    assert refused >= 30


def test_a_foreign_checkpoint_is_refused(finished, config, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished / "seed_4", run)
    shutil.copy(finished / "seed_3/config.json", run)
    (run / "summary.json").unlink()
    refuses("checkpoint: seed is 4 there and 3 here", config, run, resume=True)
    saved = checkpoint.read(run)
    shapes = placement.State(jax.ShapeDtypeStruct((3,), np.float32), None, None)
    with pytest.raises(ValueError, match="does not fit this run"):
        saved.snapshot.state(shapes)
