"""The first signal ends a run, the second exits at once, even in compiled code."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from sparsefl_jax.system import interrupt, membership
from tests.launches import ROOT, SECONDS
from tests.tiny import tiny_config

BUSY = """
import hashlib
from sparsefl_jax.system import interrupt
with interrupt.watch_signals("asked to end") as by:
    print("ready", flush=True)
    # A minute in C, without the interpreter's lock: no Python handler runs meanwhile.
    hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000_000)
"""


def begun(code, *arguments):
    """Starts a process of this code, and reads what it writes."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", code, *arguments], cwd=ROOT, **pipes)


def test_a_second_signal_leaves_at_once():
    with begun(BUSY) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert "asked to end" in process.stderr.readline() + process.stderr.readline()
        process.send_signal(signal.SIGTERM)  # as a group and its parent are ended
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=10) == 128 + signal.SIGINT


EXITING = """
import sys, threading, time
from sparsefl_jax.launch import main
sys.argv = ["launch.py", "--dry_run", "--resume"]
threading.Thread(target=time.sleep, args=[60]).start()  # for which Python waits
try:
    main()
finally:
    print("exiting", flush=True)
"""


def test_a_signal_while_python_exits_leaves_no_traceback():
    with begun(EXITING) as process:
        assert process.stdout.readline() == "exiting\n"
        time.sleep(0.5)  # until the script has ended
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 128 + signal.SIGINT
    assert "Traceback" not in said


def test_an_interrupted_command_has_the_code_of_its_signal(capsys):
    with pytest.raises(SystemExit) as ended, membership.guard():
        raise KeyboardInterrupt
    assert ended.value.code == 128 + signal.SIGINT
    assert capsys.readouterr().err.startswith("interrupted")


@pytest.mark.parametrize("signum", interrupt.SIGNALS)
def test_one_signal_is_told_and_handlers_come_back(signum, capsys):
    before = signal.getsignal(signum)
    with interrupt.watch_signals("asked to end") as by:
        assert by() == 0
        os.kill(os.getpid(), signum)
        begin = time.monotonic()
        while not by() and time.monotonic() < begin + 10:
            time.sleep(0.01)
        assert by() == signum
    assert "asked to end" in capsys.readouterr().err
    assert signal.getsignal(signum) is before
    assert signal.set_wakeup_fd(-1) == -1


def test_other_threads_change_nothing():
    told = []

    def look():
        with interrupt.watch_signals("never said") as by:
            told.append((by(), signal.getsignal(signal.SIGINT)))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert told == [(0, before)]


COMPILING = """
import sys, time
stage, *arguments = sys.argv[1:]
sys.argv = ["launch.py", *arguments]
from sparsefl_jax.runs import programs
real = programs.compile_stage
def compile_stage(setup, index):
    if index < int(stage):
        return real(setup, index)
    time.sleep(3600)
programs.compile_stage = compile_stage
exec(open("launch.py").read())
"""


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 1])
def test_a_signal_during_compilation_ends_the_process_at_once(tmp_path, stage):
    (tmp_path / "config.json").write_text(tiny_config(tmp_path).to_json_best_effort())
    flags = [f"--config={tmp_path / 'config.json'}", f"--workdir={tmp_path / 'run'}"]
    with begun(COMPILING, str(stage), *flags) as process:
        try:
            while f"compiling stage {stage + 1}" not in process.stderr.readline():
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGINT
    assert "ended while compiling" in said and "sparsefl --resume" in said
    assert "Traceback" not in said
    assert (tmp_path / "run/checkpoint.npz").exists() == (stage > 0)
