"""A run names logs that are short, altered or gone, and can resume without them."""

import json
import shutil
import zlib

import pytest

from sparsefl_jax import report
from sparsefl_jax.runs import experiment, programs, simulate
from sparsefl_jax.runs import folder as run_folder
from sparsefl_jax.runs.config import defaults
from sparsefl_jax.system import interrupt, log_lines
from tests.checkpoint_test import contents, stop_after
from tests.tiny import tiny_config

LINES = [log_lines.HEADER, b'{"a": 2}\n', b'{"a": 3}\n', b'{"a": 4}\n']


def damage(path, how):
    """Changes a file of lines."""
    lines = path.read_bytes().splitlines(keepends=True)
    if how == "gone":
        return path.unlink()
    changed = {
        "empty": [],
        "short": lines[:2],
        "cut": [*lines[:-1], lines[-1][:-3]],
        "first": [b"not JSON\n", *lines[1:]],
        "second": [lines[0], b"not JSON\n", *lines[2:]],
        "number": [lines[0], lines[1].replace(b"2", b"7", 1), *lines[2:]],
        "removed": [lines[0], *lines[2:]],
        "order": [lines[1], lines[0], *lines[2:]],
        "inserted": [lines[0], b"\n", *lines[1:]],
        "windows": [line.replace(b"\n", b"\r\n") for line in lines],
    }
    path.write_bytes(b"".join(changed[how]))


DAMAGES = ("gone", "empty", "short", "cut", "first", "number", "removed", "order")


def end_of(content):
    return [len(content), zlib.crc32(content)]


@pytest.mark.parametrize("how", [*DAMAGES, "inserted", "windows"])
def test_a_log_that_is_not_as_it_was_begins_anew(tmp_path, how):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join(LINES))
    (tmp_path / "timing.jsonl").write_bytes(LINES[1])
    whole = {"metrics.jsonl": end_of(b"".join(LINES)), "rounds": 3}
    whole["timing.jsonl"] = end_of(LINES[1])
    assert log_lines.lost(tmp_path, whole) == []
    damage(path, how)
    (said,) = log_lines.lost(tmp_path, whole)
    assert said.startswith("metrics.jsonl is not as the checkpoint knows it")
    damaged = path.read_bytes() if path.exists() else None
    after = log_lines.restore(tmp_path, whole)
    assert path.read_bytes() == LINES[0]
    assert after == whole | {"metrics.jsonl": end_of(LINES[0])}
    aside = tmp_path / "metrics.jsonl.damaged"
    assert damaged is None or aside.read_bytes() == damaged
    assert (tmp_path / "timing.jsonl").read_bytes() == LINES[1]
    if how == "short":  # once more, before a checkpoint has seen the new file
        log_lines.restore(tmp_path, whole)
        assert aside.read_bytes() == damaged
        assert (tmp_path / "metrics.jsonl.damaged1").exists()


def test_what_stands_behind_the_position_is_cut_off(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join(LINES) + b'{"a"')
    (tmp_path / "timing.jsonl").write_bytes(b"")
    position = {path.name: end_of(b"".join(LINES[:3])), "timing.jsonl": [0, 0]}
    assert log_lines.lost(tmp_path, position) == []
    assert log_lines.restore(tmp_path, position) == position
    assert path.read_bytes() == b"".join(LINES[:3])


@pytest.fixture(scope="module", autouse=True)
def undrawn():
    """Skips plots, which take most of a small run's time, but writes pages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "plot_run", lambda path: [])
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Makes a run `whole`, and one `stopped` after four of eight rounds."""
    folder = tmp_path_factory.mktemp("runs")
    config = tiny_config(folder)
    config.first_stage, config.algorithm = {}, {"name": "spdst"}
    config.num_rounds, config.eval_every = 8, 2
    defaults.complete(config)
    experiment.run(config, folder / "whole", progress=False)
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(interrupt.StoppedError):
            experiment.run(config, folder / "stopped", progress=False)
    return folder


def go_on(run, **how):
    config = run_folder.read_config(run)
    return experiment.run(config, run, resume=True, **({"progress": False} | how))


def test_a_run_with_lost_records_goes_on_if_it_is_told_to(
    runs, tmp_path, monkeypatch, capsys
):
    run = tmp_path / "run"
    shutil.copytree(runs / "stopped", run)
    for name in log_lines.FILES:
        damage(run / name, "second")
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    with monkeypatch.context() as patch:  # nothing is built, let alone trained
        patch.delattr(experiment, "build")
        patch.delattr(simulate, "simulate")
        told = r"metrics.jsonl .*; .*timing.jsonl.*; --accept_lost_records goes on"
        with pytest.raises(ValueError, match=told) as error:
            go_on(run)
    assert "\n" not in str(error.value)
    assert before == {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    told = go_on(run, accept_lost_records=True, progress=True)
    said = capsys.readouterr().err
    assert said.count("going on without records: ") == 2
    whole, mine = ((r / "metrics.jsonl").read_bytes() for r in (runs / "whole", run))
    lines = whole.splitlines(keepends=True)
    assert mine == b"".join([lines[0], *lines[7:]])  # without 4 rounds, 2 evaluations
    assert contents(run)[1:] == contents(runs / "whole")[1:]  # every array
    assert told["rounds"] == 8 and len(told["lost"]) == 2
    assert told["stages"][0]["rounds"] == 8  # that it ran, whatever is lost
    assert "lost" not in json.loads((runs / "whole/summary.json").read_text())
    assert told["lost"][0] in (run / "report.html").read_text()
    assert go_on(run) == told


def test_a_new_run_has_no_records_that_could_be_lost(tmp_path):
    with pytest.raises(ValueError, match="accept_lost_records=True, expected resume"):
        experiment.run(
            tiny_config(tmp_path), tmp_path / "new", accept_lost_records=True
        )


def test_a_run_that_had_ended_without_any_record(runs, tmp_path, monkeypatch):
    """Its last checkpoint is there, so that nothing is compiled."""
    monkeypatch.setattr(programs, "compile_stage", lambda *of: compiled.append(of))
    run, compiled = tmp_path / "run", []
    shutil.copytree(runs / "whole", run)
    (run / "summary.json").unlink()
    for name in log_lines.FILES:
        damage(run / name, "gone")
    told = go_on(run, accept_lost_records=True)
    assert not compiled
    assert told["ended_by"] == "rounds" and told["rounds"] == 8
    assert len(told["lost"]) == 2 and told["accuracy"] == {}
    whole = json.loads((runs / "whole/summary.json").read_text())
    assert told["best"] == whole["best"]
    assert "spdst" in report.summary_table(told)
    assert (run / "report.html").exists()
