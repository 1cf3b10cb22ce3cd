"""Handles the signals that end a run: the first saves it, a later one exits at once.

Python runs its signal handlers in the main thread between two instructions, and so not
while XLA compiles or computes. Therefore a thread listens on the pipe that the
interpreter's C handler writes to.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

# SIGUSR2 is what clusters can be set to send some time before they end a job. Windows
# has neither of the last two.
_NAMES = "SIGINT", "SIGTERM", "SIGHUP", "SIGUSR2"
SIGNALS = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
_SAME = 1.0  # seconds; ending a process group can signal a job more than once


class StoppedError(BaseException):
    """The error of a run that a signal ended after everything was saved.

    Like `KeyboardInterrupt` it is no `Exception`, which would cost one seed or point.

    Attributes:
      code: the exit status that a shell expects.
    """

    def __init__(self, message: str, signum: int):
        super().__init__(message)
        self.code = 128 + signum


def end_at_once() -> None:
    """Lets a further Ctrl-C end the process without a traceback, as Python exits."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))


@contextlib.contextmanager
def watch_signals(message: str) -> Iterator[Callable[[], int]]:
    """Listens for `SIGNALS` while the context lasts.

    It does nothing outside the main thread, where Python allows no handlers, and leaves
    alone the signals that the process ignores, such as SIGHUP under nohup.

    Args:
      message: the line that is printed at the first signal.

    Yields:
      A function that returns the number of the first signal, or 0 before one arrives.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return
    received = []

    def listen():
        since = 0.0
        while number := os.read(reader, 1)[0]:
            if number not in handled:
                continue
            if received:
                if number == received[0] and time.monotonic() - since < _SAME:
                    continue
                os._exit(128 + number)
            received.append(number)
            since = time.monotonic()
            print(f"\n{message}", file=sys.stderr, flush=True)

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    old_writer = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    handled = [s for s in SIGNALS if signal.getsignal(s) is not signal.SIG_IGN]
    handlers = {s: signal.signal(s, lambda *_: None) for s in handled}
    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield lambda: received[0] if received else 0
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(old_writer)
        os.write(writer, b"\0")
        thread.join()
        os.close(reader)
        os.close(writer)
