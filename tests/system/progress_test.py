"""The progress of a run: a bar on a terminal, lines in a file."""

import io

from sparsefl_jax.system import progress
from sparsefl_jax.system.progress import Progress


def train(round):
    record = {"phase": "train", "stage": 0, "round": round, "loss": 1.0}
    record |= {"bits_down": 2 * 10**8, "bits_up": 5 * 10**7}
    return record | {"gbit_cumulative": 0.25 * round}


def test_lines_tell_round_accuracy_density_and_traffic(monkeypatch):
    monkeypatch.setattr(progress, "_EVERY", 0.0)
    out = io.StringIO()
    models = {"personal": {"density": 0.1}, "newcomer": {"density": 0.7}}
    told = {"phase": "eval", "accuracy": 0.5, "models": models}
    with Progress(5, 1, file=out, title="pilot: ") as bar:
        bar.compiling(1, 2, 12.4)
        bar.update([train(2), train(3), told])
        bar.update([train(4), train(5)])
    begin, waits, first, *_, last = out.getvalue().splitlines()[:-1]
    assert begin.startswith("pilot:") and "| 1/5 [" in begin
    assert waits.endswith(", compiling stage 2 of 2 (12 s)]")
    told = "accuracy 50.00%, density 0.100, 0.75 of 1.25 Gbit]"
    assert first.startswith("pilot:  60%|") and "| 3/5 [" in first
    assert first.endswith(told) and "| 5/5 [" in last


def test_lines_of_a_file_come_seldom():
    out = io.StringIO()
    with Progress(9, file=out) as bar:
        for round in range(1, 10):
            bar.update([train(round)])
    begin, end, *empty = out.getvalue().splitlines()
    assert "| 0/9 [" in begin and "| 9/9 [" in end and empty == [""]
