"""Writes the tables of docs/unequal_clients.md from the folders of its two studies.

    python -m benchmarks.unequal runs/unequal_tune runs/unequal

The results of each run go to `benchmarks/tables/unequal.json`, from which the tables
between `<!-- table NAME -->` and `<!-- end -->` are drawn; commit both. The last model
of a run is cut to the size of each tier, as the method cuts it for a client, and tested
on all test samples and on all validation samples.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import pandas as pd

from benchmarks.measure import markdown
from benchmarks.pages import ROOT, redraw, write_entries
from benchmarks.v2.outcome import paired
from sparsefl_jax.config import build, defaults
from sparsefl_jax.report import read_run
from sparsefl_jax.runs import results
from sparsefl_jax.simulation.inference import make_evaluator
from sparsefl_jax.studies import points as on_disk

RESULTS, PAGE = "benchmarks/tables/unequal.json", "docs/unequal_clients.md"
TIERS = ("1", "1/4", "1/16", "1/64")
BASELINE, DENSE = "heterofl", "fedavg"


def entry(point: str, folder: Path) -> dict:
    """Returns the results of a finished run.

    Args:
      point: the name of its point in the study.
      folder: the directory of the run.

    Returns:
      Lists with one figure a tier, largest first: `accuracy` and `validation`, shares
      of 1, and the `weights` held. Totals of the run: `gbit` both ways, `positions` as
      a share of these bits, `gflop` and `seconds`. Seed, commit and versions.
    """
    result, summary = results.load_run(folder), read_run(folder).summary
    config = defaults.freeze(result.config)
    data = build.build_data(config)
    model, rows = build.build_model(config, data), data.val.gather()
    test = make_evaluator(model, data.x_test, data.y_test)
    val = make_evaluator(model, data.x[rows], data.y[rows])
    models, stage = tiers(folder, result), summary["stages"][-1]
    traffic = stage["bits_up"] + stage["bits_down"]
    return {
        "point": point,
        "seed": result.config.seed,
        "accuracy": [float(np.mean(test(each)[0])) for each in models],
        "validation": [float(np.mean(val(each)[0])) for each in models],
        "weights": [int(sum(map(np.sum, kernels(each)))) for each in models],
        "gbit": traffic / 1e9,
        "positions": stage["bits_positions"] / traffic,
        "gflop": stage["flops"] / 1e9,
        **{name: summary[name] for name in ("seconds", "commit", "versions")},
    }


def tiers(folder: Path, result: results.Result) -> list:
    """Returns the model of each tier, largest first, or FedAvg's only model."""
    if not result.config.budgets:
        return [next(iter(result.models.values()))]
    budgets = sorted((budget for budget, _ in result.config.budgets), reverse=True)
    if "densities" in result.config.algorithm:
        return [result.models[f"d{budget}"] for budget in budgets]
    owners = build.build_budgets(defaults.freeze(result.config))
    ids = [int(np.flatnonzero(owners == np.float32(each))[0]) for each in budgets]
    return [personal["personal"] for personal in results.load_clients(folder, ids)]


def kernels(sparse) -> list:
    """Returns the masks of the kernels."""
    return [leaf for leaf in jax.tree.leaves(sparse.mask) if leaf.ndim > 1]


def tables(entries: Sequence[dict]) -> dict[str, str]:
    """Returns the tables of the page, Markdown by name.

    Args:
      entries: of the study's runs.
    """
    accuracies = reached(entries)
    return {
        "unequal": by_tier(entries, accuracies),
        "unequal_differences": compared(accuracies),
    }


def reached(entries: Sequence[dict]) -> dict[str, pd.DataFrame]:
    """Returns the accuracies of each point: rows are seeds, columns tiers and mean."""
    found = {}
    for name in dict.fromkeys(each["point"] for each in entries):
        rows = {e["seed"]: e["accuracy"] for e in entries if e["point"] == name}
        table = pd.DataFrame.from_dict(rows, orient="index")
        table.columns = TIERS[: table.shape[1]]
        if table.shape[1] == len(TIERS):
            table["mean"] = table.mean(axis=1)
        found[name] = table
    return found


def by_tier(entries: Sequence[dict], accuracies: dict) -> str:
    """Formats the accuracy in each tier, and the costs of a run."""
    rows = []
    for name, table in accuracies.items():
        cells = [
            f"{100 * table[c].mean():.1f} ± {100 * table[c].std():.1f}"
            if c in table
            else "-"
            for c in (*TIERS, "mean")
        ]
        runs = pd.DataFrame([e for e in entries if e["point"] == name])
        mean = runs[["gbit", "positions", "gflop"]].mean()
        cells += [f"{mean['gbit']:.2f}", f"{100 * mean['positions']:.1f} %"]
        rows.append([f"`{name}`", *cells, f"{mean['gflop']:.0f}"])
    head = ["method", *TIERS, "mean", "Gbit", "positions", "GFLOP"]
    return markdown(head, rows)


def compared(accuracies: dict) -> str:
    """Formats paired differences from the baseline, by tier."""
    names = [name for name in accuracies if name not in (BASELINE, DENSE)]
    rows = {name: [f"`{name}`"] for name in names}
    for column in (*TIERS, "mean"):
        values = {name: accuracies[name][column] for name in (BASELINE, *names)}
        found = paired(values, [(name, BASELINE) for name in names])
        for name in names:
            rows[name].append(found[name, BASELINE])
    return markdown(["method", *TIERS, "mean"], list(rows.values()))


def collect(workdir: Path) -> list[dict]:
    """Returns the entries of a study's runs, in the order of its points.

    A point of which a run diverged has its error alone.

    Raises:
      FileNotFoundError: a run has not ended.
    """
    entries = []
    for point in on_disk.read(workdir):
        failed = workdir / "failed" / f"{point.name}.txt"
        error = failed.read_text().splitlines()[-1] if failed.exists() else ""
        if error.startswith("FloatingPointError"):
            entries.append({"point": point.name, "error": error})
        else:
            folders = on_disk.folders(workdir, point)
            entries += [entry(point.name, folder) for _, folder in folders]
    return entries


def published() -> dict:
    """Returns the committed entries; 'tuning' and 'study'."""
    return json.loads((ROOT / RESULTS).read_text())


def main(tune: str, workdir: str) -> None:
    """Writes the results and the page from the folders of both studies."""
    found = {"tuning": collect(Path(tune)), "study": collect(Path(workdir))}
    write_entries(ROOT / RESULTS, found)
    for name, text in tables(found["study"]).items():
        redraw(ROOT / PAGE, name, text)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("expected the folders of the tuning study and of the study")
    main(*sys.argv[1:])
