"""Writes the table of docs/methods/flasc.md from the folder of their study.

    python -m benchmarks.adapters runs/adapters

The results of each run go to `benchmarks/tables/adapters.json`, from which the table
and `docs/figures/adapters.py` are drawn; commit them.
"""

import json
import sys
from collections.abc import Sequence

import numpy as np
import pandas as pd

from benchmarks.measure import markdown
from benchmarks.pages import ROOT, redraw
from benchmarks.v2.outcome import paired
from sparsefl_jax.report import read_groups
from sparsefl_jax.report.load import Run
from sparsefl_jax.system import files

RESULTS, PAGE = "benchmarks/tables/adapters.json", "docs/methods/flasc.md"
DENSE, ADAM = "rank-16", "adam-"
PAIRS = (  # the paper's claim, and what a smaller rank or another rival does
    ("flasc-0.25", DENSE),
    ("flasc-0.0625", DENSE),
    ("flasc-0.25", "rank-4"),
    ("flasc-0.0625", "rank-1"),
    ("flasc-0.25", "ffa-16"),
    ("flasc-0.25", "pruned-0.25"),
    ("flasc-0.0625", "pruned-0.0625"),
    ("adam-flasc-0.25", ADAM + DENSE),
    ("adam-flasc-0.0625", ADAM + DENSE),
)
RIVALS = {  # columns of the table
    "less rank 16": (DENSE, ADAM + DENSE),
    "less rank 4 or 1": ("rank-4", "rank-1"),
    "less FFA-LoRA": ("ffa-16",),
    "less pruning once": ("pruned-0.25", "pruned-0.0625"),
}


def entry(point: str, run: Run) -> dict:
    """Returns the results of a finished run.

    Args:
      point: the name of its point in the study.
      run: its records.

    Returns:
      `curve`: the Gbit both ways so far and the accuracy, a share of 1, at each
      evaluation; `positions`, a share of all bits; seed, commit and versions.
    """
    stages = run.summary["stages"]
    bits = {way: sum(s[f"bits_{way}"] for s in stages) for way in ("up", "down")}
    positions = sum(stage["bits_positions"] for stage in stages)
    return {
        "point": point,
        "seed": run.config["seed"],
        "curve": [[r["gbit_cumulative"], r["accuracy"]] for r in run.evals],
        "positions": positions / sum(bits.values()),
        **{name: run.summary[name] for name in ("seconds", "commit", "versions")},
    }


def reached(entries: Sequence[dict]) -> dict[str, pd.Series]:
    """Returns the accuracy after the last round of each point, by seed."""
    found = {}
    for each in entries:
        found.setdefault(each["point"], {})[each["seed"]] = each["curve"][-1][1]
    return {point: pd.Series(by_seed) for point, by_seed in found.items()}


def compared(entries: Sequence[dict]) -> str:
    """Formats what FLASC reaches, less its rivals: differences paired by seed.

    Beside a difference stands what the rival has sent, and in the third column the
    accuracy of rank 16 after as many bits as FLASC has sent.
    """
    accuracies, table = reached(entries), []
    found = paired(accuracies, PAIRS)
    curves = {(e["point"], e["seed"]): e["curve"] for e in entries}

    def mbit(point):
        ends = [curves[point, seed][-1][0] for seed in accuracies[point].index]
        return f"{1000 * np.mean(ends):.0f}"

    for point in dict.fromkeys(a for a, _ in PAIRS):
        dense = (ADAM if point.startswith(ADAM) else "") + DENSE
        accuracy = accuracies[point]
        equal = [
            within(curves[dense, seed], curves[point, seed][-1][0])
            for seed in accuracy.index
        ]
        cells = [
            f"`{point}`",
            f"{100 * accuracy.mean():.1f} ± {100 * accuracy.std():.1f}",
        ]
        cells += [mbit(point), f"{100 * np.mean(equal):.1f}"]
        for names in RIVALS.values():
            rival = next((b for a, b in PAIRS if a == point and b in names), None)
            text = rival and f"{found[point, rival]}; {mbit(rival)}"
            cells.append(text or "-")
        table.append(cells)
    head = ["point", "accuracy, %", "Mbit", "rank 16 after as many", *RIVALS]
    return markdown(head, table)


def within(curve: Sequence[Sequence[float]], gbit: float) -> float:
    """Returns the accuracy on a curve at some Gbit, linear between evaluations.

    Example:
      >>> within([(1.0, 0.5), (3.0, 0.7)], 2.0)
      0.6
    """
    return float(np.interp(gbit, *zip(*curve, strict=True)))


def published() -> list[dict]:
    """Returns the committed entries."""
    return json.loads((ROOT / RESULTS).read_text())


def main(workdir: str) -> None:
    """Writes the results and the page from the folder of the study."""
    entries = [entry(g.name, run) for g in read_groups([workdir]) for run in g.runs]
    text = "[\n" + ",\n".join(map(json.dumps, entries)) + "\n]\n"
    files.write_text(ROOT / RESULTS, text)
    redraw(ROOT / PAGE, "adapters", compared(entries))


if __name__ == "__main__":
    main(*sys.argv[1:])
