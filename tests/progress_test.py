"""Progress without a terminal is plain lines."""

import io
from types import SimpleNamespace

from sparsefl_jax.runs import progress
from sparsefl_jax.runs.progress import Progress


def train(round):
    record = {"phase": "train", "stage": 0, "round": round, "loss": 1.0}
    record |= {"bits_down": 2 * 10**8, "bits_up": 5 * 10**7}
    return record | {"gbit_cumulative": 0.25 * round}


def test_lines_tell_round_accuracy_density_traffic_and_time_left(monkeypatch):
    clock = iter([0.0, 4.0, 10.0])  # the start, then each update
    timer = SimpleNamespace(monotonic=lambda: next(clock))
    monkeypatch.setattr(progress, "time", timer)
    out = io.StringIO()
    models = {"personal": {"density": 0.1}, "newcomer": {"density": 0.7}}
    told = {"phase": "eval", "accuracy": 0.5, "models": models}
    with Progress(4, file=out, every=0.0) as bar:
        bar.update([train(1), train(2), told])
        bar.update([train(3), train(4)])
    first, last = out.getvalue().splitlines()
    told = "accuracy 50.00%, density 0.100, 0.5 of 1 Gbit, 0.50 rounds/s, 4 s left"
    assert first == f"round 2/4: {told}"
    assert last.startswith("round 4/4: accuracy 50.00%")
    assert last.endswith("0.40 rounds/s, 0 s left")


def test_a_terminal_has_one_line_that_changes():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    with Progress(2, file=Terminal()) as bar:
        bar.update([train(1)])
        bar.update([train(2)])
    first, second = bar.file.getvalue().split("\r")[1:]
    assert first.startswith("round 1/2: 0.25 of 0.5 Gbit") and "\n" not in first
    assert second.startswith("round 2/2") and second.endswith("\033[K\n")


def test_silence():
    out = io.StringIO()
    with Progress(1, show=False, file=out) as bar:
        bar.update([train(1)])
    assert out.getvalue() == ""


def test_the_time_left_leaves_compilation_out(monkeypatch):
    clock = iter([0.0, 14.0])  # 10 s of these went by compiling, 2 s a round
    timer = SimpleNamespace(monotonic=lambda: next(clock))
    monkeypatch.setattr(progress, "time", timer)
    out = io.StringIO()
    program = SimpleNamespace(memory=SimpleNamespace(working_set=3e6), seconds=12.0)
    with Progress(4, file=out) as bar:
        for second in range(8):
            bar.compiling(1, 2, second + 0.2, None)
        bar.compiling(1, 2, 8.2, program)
        bar.update([train(1), train(2)], 10.0)
    *told, left = out.getvalue().splitlines()
    assert told == [
        "compiling stage 2 of 2 (0 s)",
        "compiling stage 2 of 2 (5 s)",
        "stage 2 of 2: compiled in 12 s, working set 3.00 MB",
    ]
    assert left.endswith("0.50 rounds/s, 4 s left")
