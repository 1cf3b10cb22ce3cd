"""The progress of a run, and the time spent on compilation."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

import jax
from tqdm import tqdm

WAITING = "/sparsefl_jax/waiting_for_compilation"
_COMPILING = {
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
    WAITING,
}
_EVERY = 5.0  # seconds between lines in a file


class Progress(tqdm):
    """Shows rounds, rounds/s and time left, accuracy, density, Gbit so far and in all.

    The Gbit in all are extrapolated from the rounds of the last segment.

    Args:
      total: rounds of all stages.
      done: completed rounds of a resumed run.
      show: whether to show anything.
      file: where to write: a bar on a terminal, else a line every few seconds.
      title: the beginning of every line.
    """

    def __init__(
        self, total: int, done: int = 0, *, show: bool = True, file=None, title=""
    ):
        file = file or sys.stderr
        super().__init__(
            desc=title,
            total=total,
            initial=done,
            unit="round",
            file=file,
            disable=not show,
            dynamic_ncols=True,
            miniters=0,
            mininterval=0.1 if file.isatty() else _EVERY,
        )
        self.evaluation = []  # the last one's headline, in words

    @staticmethod
    def status_printer(file):
        """Returns what prints the bar, in a file as a new line each time."""
        if file.isatty():
            return tqdm.status_printer(file)
        return lambda text: print(text, file=file, flush=True)

    def show_compilation(self, stage: int, stages: int, seconds: float) -> None:
        """Shows that the run waits for the compilation of a stage, counted from 0."""
        text = f"compiling stage {stage + 1} of {stages} ({seconds:.0f} s)"
        self.set_postfix_str(text, refresh=False)
        super().update(0)

    def update(self, records: list[dict]) -> None:
        """Shows the records of one segment."""
        rounds = [r for r in records if r["phase"] == "train"]
        for record in records:
            if "models" in record:
                density = next(iter(record["models"].values()))["density"]
                name = "value" if "value" in record else "accuracy"
                form = ".4g" if "value" in record else ".2%"
                value = f"{record.get('measure', name)} {record[name]:{form}}"
                if (validation := record.get(f"val_{name}")) is not None:
                    value += f", validation {validation:{form}}"
                self.evaluation = [value, f"density {density:.3f}"]
        bits = sum(r["bits_down"] + r["bits_up"] for r in rounds)
        spent = rounds[-1]["gbit_cumulative"]
        left = self.total - self.n - len(rounds)
        whole = spent + bits / 1e9 / len(rounds) * left
        told = [*self.evaluation, f"{spent:.3g} of {whole:.3g} Gbit"]
        self.set_postfix_str(", ".join(told), refresh=False)
        super().update(len(rounds))


@contextlib.contextmanager
def measure_compilation() -> Iterator[Callable[[], float]]:
    """Counts the seconds that this thread spends on tracing and compilation.

    It includes lowering, loading from the cache, and waiting for another thread that
    compiles (`WAITING`). Nested spans count once.

    Yields:
      `seconds_since()`, the seconds since the last call.

    Example:
      >>> with measure_compilation() as seconds_since:
      ...     _ = jax.jit(lambda x: x + 1.5)(2.0)
      ...     seconds_since() > 0, seconds_since()
      (True, 0)
    """
    spans, thread = [], threading.get_ident()

    def listen(event, start, end, **_):
        if event not in _COMPILING or threading.get_ident() != thread:
            return
        while spans and spans[-1][1] > start:  # inner ones end before the outer one
            start = min(start, spans.pop()[0])
        spans.append((start, end))

    def seconds_since():
        seconds = sum(end - start for start, end in spans)
        spans.clear()
        return seconds

    jax.monitoring.register_event_time_span_listener(listen)
    try:
        yield seconds_since
    finally:
        jax.monitoring.unregister_event_time_span_listener(listen)
