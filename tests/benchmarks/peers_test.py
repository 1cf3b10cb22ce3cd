"""The comparison with other simulators: rounds in turns."""

import sys

import numpy as np
import pytest

from benchmarks import measure, workload
from benchmarks.peers import compare

pytestmark = pytest.mark.slow

TINY = workload.Workload("mlp", 8, 12, 4, widths=(4,), batch_size=8)

PEER = """
import sys
from benchmarks.peers.turns import Turns, setup
turns, name = Turns(), sys.argv[1]
print("noise of a library")
facts = {"steps": setup()["cohort"], "compile_seconds": 0.0}
turns.tell(version="1", parameters=int(sys.argv[2]), **facts)
while turns.wait():
    with open(sys.argv[3], "a") as ran:
        ran.write(name)
    turns.tell()
"""


def test_two_processes_run_rounds_in_turns(tmp_path, monkeypatch):
    """On a fake clock, rounds of a take 1 to 3 seconds, those of b 4, 8 and 15."""
    (tmp_path / "peer.py").write_text(PEER)
    command = [sys.executable, str(tmp_path / "peer.py")]
    ran = tmp_path / "ran"
    clock = iter(np.cumsum([0, 4, 0, 1, 0, 2, 0, 8, 0, 15, 0, 3]).tolist())
    with monkeypatch.context() as patch, (tmp_path / "log").open("w") as log:
        pair = [[*command, name, "7", str(ran)] for name in "ab"]
        patch.setattr(measure.time, "perf_counter", lambda: next(clock))
        told = compare.pair(*pair, TINY, 3, log)
    with (tmp_path / "log").open("a") as log:
        with pytest.raises(SystemExit, match="mlp has 7 and 8 parameters"):
            compare.pair(pair[0], [*command, "c", "8", str(ran)], TINY, 1, log)
        with pytest.raises(SystemExit, match="ended, see"):
            compare.pair(pair[0], [sys.executable, "-c", "1"], TINY, 1, log)
    assert ran.read_text() == "ab" + "ba" + "ab" + "ba"  # the first calls are not timed
    assert told == {
        "peer's version": "1",
        "ours, steps/s: best": 4 / 1,
        "ours, steps/s: median": 4 / 2,
        "peer, steps/s: best": 4 / 4,
        "peer, steps/s: median": 4 / 8,
        "ours / peer": 4,  # of 4 / 1, 8 / 2, 15 / 3
        "compile s": 0.0,
    }
    assert "noise" in (tmp_path / "log").read_text()
