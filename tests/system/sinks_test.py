"""Logs of a run: JSON lines and TensorBoard; interrupted, altered, on a full disk."""

import errno
import json
import sys
import zlib

import pytest

from sparsefl_jax.runs import experiment, simulate
from sparsefl_jax.system import interrupt, log_lines, sinks
from tests.refusals import refused
from tests.runs.checkpoint_test import stop_after
from tests.runs.disk_test import full_disk
from tests.tiny import tiny_config

REASON = "needs the extra [tensorboard]"
LOSSES = [1, 1 / 2, 1 / 11, 1 / 12, 1 / 13, 1 / 14]  # of the rounds below


def segments():
    """Yields two stages of 2 and 4 rounds, in segments of 2 with evaluations."""
    for stage, first in ((0, 1), (1, 1), (1, 3)):
        rounds = [
            {
                "stage": stage,
                "phase": "train",
                "round": round,
                "loss": 1 / (10 * stage + round),
                "bits_up": 10**12,
                "clients": [round, 7],
                "layer_density": {"conv1/kernel": 0.5, "fc/kernel": 0.25},
            }
            for round in (first, first + 1)
        ]
        evaluation = {
            "stage": stage,
            "phase": "eval",
            "round": first + 1,
            "models": {"global": {"accuracy": 0.1 * (stage + first)}},
            "accuracy": 0.1 * (stage + first),
        }
        yield [*rounds, evaluation]


def write(workdir, names=(), position=None, first=0, last=3, base=0.0, summary=None):
    """Writes some segments of half a second, and returns the position at the end."""
    start = {"position": None, "rounds": 0, "seconds": 0.0} | (position or {})
    if position is not None:
        log_lines.check_logs(workdir, position["position"])
    rounds, seconds = start["rounds"], start["seconds"]
    with sinks.open_sinks(names, workdir, **start) as (log, position):
        for index, records in list(enumerate(segments()))[first:last]:
            rounds, seconds = rounds + 2, base + 0.5 * (index + 1)
            log(records, seconds)
        if summary is not None:
            (workdir / "summary.json").write_text(json.dumps(summary))
        ends = position()
    return {"position": ends, "rounds": rounds, "seconds": seconds}


def contents(workdir):
    return [(workdir / f).read_bytes() for f in ("metrics.jsonl", "timing.jsonl")]


def test_lines_of_records_and_of_segments(tmp_path):
    position = write(tmp_path)
    metrics, timing = contents(tmp_path)
    lines = [json.loads(line) for line in metrics.splitlines()]
    told = [record for records in segments() for record in records]
    assert lines == [{"schema": 1}, *told]
    both = {"rounds_per_second": 4.0, "compile_seconds": 0.0}
    assert [json.loads(line) for line in timing.splitlines()] == [
        {"stage": stage, "round": round, "seconds": seconds} | both
        for stage, round, seconds in ((0, 2, 0.5), (1, 2, 1.0), (1, 4, 1.5))
    ]
    for name, text in (("metrics.jsonl", metrics), ("timing.jsonl", timing)):
        assert position["position"][name] == [len(text), zlib.crc32(text)]
    write(tmp_path, last=1)  # no position: the files start empty
    assert len((tmp_path / "timing.jsonl").read_bytes().splitlines()) == 1


def test_resumed_as_if_never_stopped(tmp_path):
    write(tmp_path)
    whole = contents(tmp_path)
    position = json.loads(json.dumps(write(tmp_path, last=1)))
    write(tmp_path, position=position, first=1, last=2, base=9.0)  # lost by a kill
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"stage": 1, "pha')
    write(tmp_path, position=position, first=1)
    assert contents(tmp_path) == whole


def test_a_log_that_is_altered_while_the_run_goes_on_is_refused(tmp_path):
    """The checksum follows from what was written, not from what is in the file."""
    first, second, _ = segments()
    with sinks.open_sinks((), tmp_path) as (log, position):
        log(first, 0.5)
        path = tmp_path / "metrics.jsonl"
        path.write_bytes(path.read_bytes().replace(b"1000000000000", b"2000000000000"))
        log(second, 1.0)
        ends = position()
    with pytest.raises(ValueError, match=r"metrics\.jsonl are not as the checkpoint"):
        log_lines.check_logs(tmp_path, ends)


def damage(path, how):
    """Changes a file of lines."""
    head, first, *rest = path.read_bytes().splitlines(keepends=True)
    changed = first.replace(b"1", b"7", 1)
    path.write_bytes(
        b"".join([head, first] if how == "short" else [head, changed, *rest])
    )


@pytest.mark.parametrize(
    "name, how", [("metrics.jsonl", "short"), ("timing.jsonl", "number")]
)
def test_a_run_with_lost_records_is_refused_and_stays_as_it_was(
    tmp_path, monkeypatch, name, how
):
    config, run = tiny_config(tmp_path), tmp_path / "run"
    config.first_stage, config.algorithm = {}, {"name": "spdst"}
    config.num_rounds, config.eval_every = 8, 2

    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(interrupt.StoppedError):
            experiment.run(config, run, progress=False)
    damage(run / name, how)
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    monkeypatch.delattr(experiment, "build")  # nothing is built, let alone trained
    monkeypatch.delattr(simulate, "simulate")
    said = f"{name} are not as the checkpoint knows them, expected the file of this "
    refused(lambda: experiment.run(config, run, resume=True, progress=False), said)
    assert before == {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}


def test_a_write_that_fits_in_part_is_taken_back(tmp_path):
    write(tmp_path)
    whole = contents(tmp_path)
    position = write(tmp_path, last=1)
    before = contents(tmp_path)
    room, told = len(before[0]) + 30, r"metrics\.jsonl"
    with full_disk(room), pytest.raises(OSError, match=told) as caught:
        write(tmp_path, position=position, first=1)
    assert caught.value.errno == errno.EFBIG and "\n" not in str(caught.value)
    assert contents(tmp_path) == before
    write(tmp_path, position=position, first=1)
    assert contents(tmp_path) == whole


def test_absent_packages_are_one_line(monkeypatch):
    modules = {"tensorboard": "tensorboardX", "wandb": "wandb.sdk"}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ValueError, match=rf"pip install -e '.\[{name}\]'"):
            sinks.check_sinks([name])


@pytest.fixture
def scalars():
    """Reads scalars by TensorBoard: {tag: [(step, value)]}."""
    pytest.importorskip("tensorboardX", reason=REASON)
    module = "tensorboard.backend.event_processing.event_accumulator"
    reader = pytest.importorskip(module, reason=REASON)

    def read(workdir):
        events = reader.EventAccumulator(
            str(workdir / "tensorboard"), size_guidance={reader.SCALARS: 0}
        )
        tags = events.Reload().Tags()["scalars"]
        return {t: [(e.step, e.value) for e in events.Scalars(t)] for t in tags}

    return read


def test_tensorboard_reads_every_number_by_round_over_all_stages(tmp_path, scalars):
    write(tmp_path, ["tensorboard"])
    read = scalars(tmp_path)
    assert [step for step, _ in read["train/loss"]] == [1, 2, 3, 4, 5, 6]
    assert [v for _, v in read["train/loss"]] == pytest.approx(LOSSES)
    assert [step for step, _ in read["eval/accuracy"]] == [2, 4, 6]
