"""Processes of one run that refuse, fail or are left alone: each ends with one line."""

import signal

import pytest

from sparsefl_jax.system import membership
from tests.launches import (
    DRIVER,
    begin_all,
    configurations,
    ended,
    free_port,
    has_written,
    launched,
    wrote,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("dies", [0, 1])
def test_who_is_left_alone_ends(dies, tmp_path):
    config = configurations(tmp_path)["spafl"]
    config.num_rounds = 10_000
    wrote(config, tmp_path / "run")
    begun = launched(tmp_path / "run")
    has_written(begun, tmp_path / "run")
    begun[dies].kill()
    begun[1 - dies].wait(membership.HEARTBEAT + membership.SHUTDOWN)
    codes, errors = ended(begun)
    assert codes[1 - dies] not in (0, -signal.SIGKILL)
    if dies:  # with process 0 goes JAX's service, whose client aborts
        assert codes[0] == 1 and "Traceback" not in errors[0]
        assert "error: another process of this run has ended" in errors[0]


def test_what_one_refuses_ends_both(tmp_path):
    config = configurations(tmp_path)["spafl"]
    for name, config.seed in (("a", 0), ("b", 1)):
        wrote(config, tmp_path / name)
    port = free_port()
    start = ["-c", DRIVER, port]
    codes, errors = ended(
        begin_all([*start, i, tmp_path, name] for i, name in enumerate("ab"))
    )
    assert 0 not in codes
    assert "the configuration of process 1 differs" in errors[0]


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("here", 2, 0), "coordinator='here', expected host:port"),
        (("here:12", 2, 0, 0.0), "wait_minutes=0.0, expected in .0, inf."),
    ],
)
def test_start_refuses(arguments, said):
    with pytest.raises(ValueError, match=said):
        membership.start(*arguments)


HERE = ["--coordinator=localhost:{port}", "--processes=2", "--process_id=0"]
ALONE = [
    (["--distributed"], "found no launcher of several processes"),
    ([*HERE, "--wait_minutes=.02"], "the other processes have not come at localhost:"),
    (["--wait_minutes=3"], "--wait_minutes=3 is read in several processes alone"),
]


@pytest.mark.parametrize("flags, said", ALONE)
def test_who_is_alone_says_so_in_one_line(flags, said):
    flags = [flag.format(port=free_port()) for flag in flags]
    run = ["--config=configs/flash_mnist.py:mini", "--dry_run"]
    (code,), (error,) = ended(begin_all([["launch.py", *run, *flags]]))
    assert code == 2 and error.startswith(f"error: {said}")
    assert len(error.splitlines()) == 1


# Two processes, of which one fails and the other waits for it.
PARTING = """
import sys
from sparsefl_jax.system import membership, processes

port, index, fails = map(int, sys.argv[1:])
membership.start(f"localhost:{port}", 2, index)
if index == fails:
    membership.leave("error: no such thing", 2)
processes.most(index)
"""


@pytest.mark.parametrize("fails", [0, 1])
def test_one_that_fails_ends_the_other(fails):
    port = free_port()
    begun = begin_all(["-c", PARTING, port, i, fails] for i in (0, 1))
    codes, errors = ended(begun)
    lines = [
        [line for line in error.splitlines() if not line.startswith("[Gloo]")]
        for error in errors
    ]
    assert lines[fails] == ["error: no such thing"] and codes[fails] == 2
    assert codes[1 - fails] not in (0, 2)
    if fails:  # otherwise JAX says so
        said = "error: another process of this run has ended; its output says why"
        assert lines[0] == [said] and codes[0] == 1
