"""How far a run has come, and which of its seconds went into compilation."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

import jax
from tqdm import tqdm

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

    What is to come follows from the rounds of the stage that the run is in.

    Args:
      total: rounds of all stages.
      done: rounds that a resumed run has behind it.
      show: False for silence.
      file: where to write; a terminal gets a bar, anything else a line at most every
        `every` seconds.
      every: seconds between lines.
      title: what every line begins with.
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
        self.accuracy, self.density = None, None  # of the last evaluation's headline
        self.stage, self.bits, self.rounds = None, 0, 0  # of the last stage
        self.file = sys.stderr if file is None else file
        self.lines = show and not self.file.isatty()
        self.title = title
        self.every, self.begin, self.said = every, time.monotonic(), -every
        self.compiled = 0.0  # seconds, which tell nothing of later rounds
        self.waited = 0.0  # seconds of compilation at the last line that said so
        self.bar = tqdm(
            total=total,
            initial=done,
            disable=not show or self.lines,
            file=self.file,
            unit="round",
            desc=title.rstrip(", ") or None,
        )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.bar.close()

    def compiling(self, stage: int, stages: int, seconds: float, program) -> None:
        """Shows that the run waits for a stage's compilation, or that it is there.

        Args:
          stage: from 0.
          stages: how many the run has.
          seconds: for which it has waited.
          program: the compiled stage; None while the run waits.
        """
        name = f"stage {stage + 1} of {stages}"
        if program is None:
            text = f"compiling {name} ({seconds:.0f} s)"
            self.bar.set_description_str(self.title + text)
            due = seconds < 1 or seconds - self.waited >= self.every
        else:
            size = format_si(program.memory.working_set, "B")
            text = f"{name}: compiled in {program.seconds:.0f} s, working set {size}"
            self.bar.set_description_str(self.title)
            due = True
        if self.lines and due:
            self.waited = seconds
            print(self.title + text, file=self.file, flush=True)

    def update(self, records: list[dict], compiled: float = 0.0) -> None:
        """Takes the records of one segment, and the seconds of it spent compiling."""
        rounds = [r for r in records if r["phase"] == "train"]
        self.done += len(rounds)
        for record in records:
            if "models" in record:
                self.accuracy = record["accuracy"]
                self.density = next(iter(record["models"].values()))["density"]
        last = rounds[-1]
        parts = [] if self.accuracy is None else [f"accuracy {self.accuracy:.2%}"]
        parts += [] if self.density is None else [f"density {self.density:.3f}"]
        spent = last["gbit_cumulative"]
        if last["stage"] != self.stage:
            self.stage, self.bits, self.rounds = last["stage"], 0, 0
        self.bits += sum(r["bits_down"] + r["bits_up"] for r in rounds)
        self.rounds += len(rounds)
        left = self.bits / 1e9 / self.rounds * (self.total - self.done)
        parts += [f"{spent:.3g} of {spent + left:.3g} Gbit"]
        self.compiled += compiled
        self.bar.start_t = getattr(self.bar, "start_t", 0.0) + compiled
        self.bar.last_print_t = getattr(self.bar, "last_print_t", 0.0) + compiled
        self.bar.set_postfix_str(", ".join(parts), refresh=False)
        self.bar.update(len(rounds))
        elapsed = time.monotonic() - self.begin
        if self.lines and (
            elapsed - self.said >= self.every or self.done == self.total
        ):
            self.said = elapsed
            rate = (self.done - self.before) / max(elapsed - self.compiled, 1e-9)
            parts += [
                f"{rate:.2f} rounds/s",
                f"{(self.total - self.done) / rate:.0f} s left",
            ]
            line = f"{self.title}round {self.done}/{self.total}: " + ", ".join(parts)
            print(line, file=self.file, flush=True)


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

    That is tracing, lowering, and compiling or loading from the cache, and `waiting`
    for another thread that does so; what lies inside one another counts once.

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
