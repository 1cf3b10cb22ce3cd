"""How far a run has come: a bar in a terminal, plain lines elsewhere."""

import sys
import time

from tqdm import tqdm


class Progress:
    """Shows round, accuracy, density, Gbit, rounds/s and the time left.

    Args:
      total: rounds of all stages.
      done: rounds that a resumed run has behind it.
      show: False for silence.
      file: where to write; a terminal gets a bar, anything else a line at most every
        `every` seconds.
      every: seconds between lines.
    """

    def __init__(
        self,
        total: int,
        done: int = 0,
        *,
        show: bool = True,
        file=None,
        every: float = 5.0,
    ):
        self.total, self.done, self.before = total, done, done
        self.accuracy, self.density = None, None  # of the last evaluation's headline
        self.file = sys.stderr if file is None else file
        self.lines = show and not self.file.isatty()
        self.every, self.begin, self.said = every, time.monotonic(), -every
        self.bar = tqdm(
            total=total,
            initial=done,
            disable=not show or self.lines,
            file=self.file,
            unit="round",
        )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.bar.close()

    def update(self, records: list[dict]) -> None:
        """Takes the records of one segment."""
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
        self.bar.set_postfix_str(", ".join(parts), refresh=False)
        self.bar.update(len(rounds))
        elapsed = time.monotonic() - self.begin
        if self.lines and (
            elapsed - self.said >= self.every or self.done == self.total
        ):
            self.said = elapsed
            rate = (self.done - self.before) / elapsed
            parts += [
                f"{rate:.2f} rounds/s",
                f"{(self.total - self.done) / rate:.0f} s left",
            ]
            line = f"round {self.done}/{self.total}: " + ", ".join(parts)
            print(line, file=self.file, flush=True)
