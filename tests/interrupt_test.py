"""The first signal ends a run, the second exits at once, even in compiled code."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from sparsefl_jax.system import interrupt

BUSY = """
import hashlib
from sparsefl_jax.system import interrupt
with interrupt.listening("asked to end") as by:
    print("ready", flush=True)
    # A minute in C, without the interpreter's lock: no Python handler runs meanwhile.
    hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000_000)
"""


def test_a_second_signal_leaves_at_once():
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert b"asked to end" in process.stderr.readline() + process.stderr.readline()
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=10) == 128 + signal.SIGINT


@pytest.mark.parametrize("signum", interrupt.SIGNALS)
def test_one_signal_is_told_and_handlers_come_back(signum, capsys):
    before = signal.getsignal(signum)
    with interrupt.listening("asked to end") as by:
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
        with interrupt.listening("never said") as by:
            told.append((by(), signal.getsignal(signal.SIGINT)))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert told == [(0, before)]
