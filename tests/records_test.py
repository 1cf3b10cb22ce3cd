"""A run whose logs are short, altered or gone is not resumed."""

import zlib

import pytest

from sparsefl_jax.runs import experiment, simulate
from sparsefl_jax.runs.config import defaults
from sparsefl_jax.system import interrupt, log_lines
from tests.checkpoint_test import stop_after
from tests.refusals import refused
from tests.tiny import tiny_config

LINES = [b'{"schema": 1}\n', b'{"a": 2}\n', b'{"a": 3}\n', b'{"a": 4}\n']


def damage(path, how):
    """Changes a file of lines."""
    lines = path.read_bytes().splitlines(keepends=True)
    if how == "gone":
        return path.unlink()
    changed = {
        "short": lines[:2],
        "number": [lines[0], lines[1].replace(b"2", b"7", 1), *lines[2:]],
        "second": [lines[0], b"not JSON\n", *lines[2:]],
    }
    path.write_bytes(b"".join(changed[how]))


def end_of(content):
    return [len(content), zlib.crc32(content)]


@pytest.mark.parametrize("how", ["gone", "short", "number", "second"])
def test_a_log_that_is_not_as_it_was_is_refused(tmp_path, how):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join(LINES))
    (tmp_path / "timing.jsonl").write_bytes(LINES[1])
    whole = {"metrics.jsonl": end_of(b"".join(LINES)), "rounds": 3}
    whole["timing.jsonl"] = end_of(LINES[1])
    log_lines.check(tmp_path, whole)
    damage(path, how)
    told = "first 41 bytes of metrics.jsonl are not as the checkpoint knows them"
    refused(lambda: log_lines.check(tmp_path, whole), told)


@pytest.mark.parametrize("name", log_lines.FILES)
def test_a_run_with_lost_records_is_refused_and_stays_as_it_was(
    tmp_path, monkeypatch, name
):
    config, run = tiny_config(tmp_path), tmp_path / "run"
    config.first_stage, config.algorithm = {}, {"name": "spdst"}
    config.num_rounds, config.eval_every = 8, 2
    defaults.complete(config)
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(interrupt.StoppedError):
            experiment.run(config, run, progress=False)
    damage(run / name, "second")
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    monkeypatch.delattr(experiment, "build")  # nothing is built, let alone trained
    monkeypatch.delattr(simulate, "simulate")
    said = f"{name} are not as the checkpoint knows them, expected the file of this "
    refused(lambda: experiment.run(config, run, resume=True, progress=False), said)
    assert before == {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
