"""How far a run has come: a bar in a terminal, plain lines elsewhere."""

import sys
import time

from tqdm import tqdm

from sparsefl_jax.core.formats import format_si


class Progress:
    """Shows round, accuracy, density, Gbit, rounds/s and the time left.

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
        parts += [f"{last['gbit_cumulative']:.3g} Gbit"]
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
