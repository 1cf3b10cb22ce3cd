"""The progress of a run, and the time spent on compilation."""

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator

import jax

from sparsefl_jax.core.formats import format_si

_WAITING = "/sparsefl_jax/waiting_for_compilation"
_COMPILING = {
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
    _WAITING,
}


class Progress:
    """Shows round, accuracy, density, Gbit so far and in all, rounds/s, the time left.

    Totals are extrapolated from the rounds of the current stage.

    Args:
      total: rounds of all stages.
      done: completed rounds of a resumed run.
      show: whether to show anything.
      file: where to write; a terminal gets one line that changes, anything else a line
        at most every `every` seconds.
      every: seconds between lines.
      title: the beginning of every line.
    """

    def __init__(
        self,
        total: int,
        done: int = 0,
        *,
        show: bool = True,
        file=None,
        every: float = 5.0,
        title: str = "",
    ):
        self.total, self.done, self.before = total, done, done
        self.show, self.every, self.title = show, every, title
        self.file = sys.stderr if file is None else file
        self.evaluation = []  # the last one's headline, in words
        self.stage, self.bits, self.rounds = None, 0, 0  # of the last stage
        self.begin, self.last = time.monotonic(), -every  # line
        self.compiled = 0.0  # seconds, left out of the rate of rounds
        self.waited = 0.0  # seconds of compilation at the last line on it

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.show and self.file.isatty():
            print(file=self.file)

    def compiling(self, stage: int, stages: int, seconds: float, program) -> None:
        """Shows that the run waits for a stage's compilation, or that it has finished.

        Args:
          stage: from 0.
          stages: the number of stages of the run.
          seconds: of waiting so far.
          program: the compiled stage; None while the run waits.
        """
        name = f"stage {stage + 1} of {stages}"
        if program is not None:
            size = format_si(program.memory.working_set, "B")
            self._say(
                f"{name}: compiled in {program.seconds:.0f} s, working set {size}"
            )
        elif self._say(
            f"compiling {name} ({seconds:.0f} s)",
            seconds < 1 or seconds - self.waited >= self.every,
        ):
            self.waited = seconds

    def update(self, records: list[dict], compiled: float = 0.0) -> None:
        """Shows the records of one segment, with the seconds of it spent compiling."""
        rounds = [r for r in records if r["phase"] == "train"]
        for record in records:
            if "models" in record:
                density = next(iter(record["models"].values()))["density"]
                accuracy = f"accuracy {record['accuracy']:.2%}"
                self.evaluation = [accuracy, f"density {density:.3f}"]
        if rounds[-1]["stage"] != self.stage:
            self.stage, self.bits, self.rounds = rounds[-1]["stage"], 0, 0
        self.done += len(rounds)
        self.rounds += len(rounds)
        self.bits += sum(r["bits_down"] + r["bits_up"] for r in rounds)
        self.compiled += compiled
        spent, left = rounds[-1]["gbit_cumulative"], self.total - self.done
        whole = spent + self.bits / 1e9 / self.rounds * left
        elapsed = time.monotonic() - self.begin
        rate = (self.done - self.before) / max(elapsed - self.compiled, 1e-9)
        parts = [
            *self.evaluation,
            f"{spent:.3g} of {whole:.3g} Gbit",
            f"{rate:.2f} rounds/s",
            f"{left / rate:.0f} s left",
        ]
        due = elapsed - self.last >= self.every or not left
        if self._say(f"round {self.done}/{self.total}: {', '.join(parts)}", due):
            self.last = elapsed

    def _say(self, text: str, due: bool = True) -> bool:
        """Writes a line if it is due, and to a terminal always; returns `due`."""
        text = self.title + text
        if self.show and self.file.isatty():
            width = shutil.get_terminal_size().columns
            print(f"\r{text[:width]}\033[K", end="", file=self.file, flush=True)
        elif self.show and due:
            print(text, file=self.file, flush=True)
        return due


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Counts the time within as compilation, as `compiling` yields it."""
    begin = time.time()
    try:
        yield
    finally:
        jax.monitoring.record_event_time_span(_WAITING, begin, time.time())


@contextlib.contextmanager
def compiling() -> Iterator[Callable[[], float]]:
    """Counts the seconds that this thread spends on tracing and compilation.

    It includes lowering, loading from the cache, and `waiting` for another thread that
    compiles. Nested spans count once.

    Yields:
      `taken()`, the seconds since the last call.

    Example:
      >>> with compiling() as taken:
      ...     _ = jax.jit(lambda x: x + 1.5)(2.0)
      ...     taken() > 0, taken()
      (True, 0)
    """
    spans, thread = [], threading.get_ident()

    def listen(event, start, end, **_):
        if event not in _COMPILING or threading.get_ident() != thread:
            return
        while spans and spans[-1][1] > start:  # inner ones end before the outer one
            start = min(start, spans.pop()[0])
        spans.append((start, end))

    def taken():
        seconds = sum(end - start for start, end in spans)
        spans.clear()
        return seconds

    jax.monitoring.register_event_time_span_listener(listen)
    try:
        yield taken
    finally:
        jax.monitoring.unregister_event_time_span_listener(listen)
