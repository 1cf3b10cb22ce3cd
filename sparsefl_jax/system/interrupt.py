"""Ctrl-C, SIGTERM, SIGHUP: the first asks a run to end, the second leaves at once.

Python runs its signal handlers in the main thread between two instructions, and not
while XLA compiles or computes. So a thread listens on the pipe that the interpreter's
C handler writes to.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StoppedError(Exception):
    """A run was asked to end by a signal, and did so with everything saved.

    Attributes:
      code: the exit status that a shell expects.
    """

    def __init__(self, message: str, signum: int):
        super().__init__(message)
        self.code = 128 + signum


@contextlib.contextmanager
def listening(tell: str) -> Iterator[Callable[[], int]]:
    """Listens for `SIGNALS` while the context lasts.

    Outside the main thread, where Python allows no handlers, nothing is changed; nor is
    a signal that the process ignores, as under nohup.

    Args:
      tell: printed at the first signal.

    Yields:
      A function that returns the signal that came, 0 if none did.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return
    came = []

    def listen():
        while number := os.read(reader, 1)[0]:
            if number not in heard:
                continue
            if came:
                os._exit(128 + number)
            came.append(number)
            print(f"\n{tell}", file=sys.stderr, flush=True)

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    heard = [s for s in SIGNALS if signal.getsignal(s) is not signal.SIG_IGN]
    handlers = {s: signal.signal(s, lambda *_: None) for s in heard}
    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield lambda: came[0] if came else 0
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before)
        os.write(writer, b"\0")
        thread.join()
        os.close(reader)
        os.close(writer)
