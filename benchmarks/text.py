"""Writes the tables of docs/text.md from the folders of studies/text_adapters.py.

    python -m benchmarks.text tuning=runs/text_tune study=runs/text
    python -m benchmarks.text again=runs/text_again pooled=runs/text_pooled
    python -m benchmarks.text --sentences FILE    # for benchmarks/peers/pooled.py

The results of each finished run are added to `benchmarks/tables/text.json`, from which
the tables and `docs/figures/text.py` are drawn; commit them. Score and intervals are
those of version 2 of the benchmark, with a budget of what rank 16 costs at 8 bits.
"""

import json
import sys
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from benchmarks.measure import markdown
from benchmarks.pages import ROOT, redraw, write_entries
from benchmarks.v2 import outcome, page, rules
from sparsefl_jax.config import build, defaults
from sparsefl_jax.core.check import check
from sparsefl_jax.report import costs, read_groups
from sparsefl_jax.report.load import Run
from studies import text_adapters as study

RESULTS, PAGE = "benchmarks/tables/text.json", "docs/text.md"
DENSE, BUDGET = "rank-16", "rank-16-8bit"
SPARSE, RIVALS = ("flasc-0.25", "flasc-0.0625"), ("rank-1", "rank-2", BUDGET)
# Two families, fixed before the first run of the study: FLASC's claim, that it reaches
# rank 16 in as many rounds, and what cheaper dense adapters do with as many bits. Three
# seeds decided one of thirteen pairs; so those of `again` are tested on its six seeds
# alone, which was fixed before any of its runs.
ROUNDS = [(name, DENSE) for name in (*SPARSE, "topk-0.0625", *RIVALS, "ffa-16")]
BITS = [(name, rival) for name in SPARSE for rival in RIVALS]
MAJORITY = 444 / 872  # accuracy before the first evaluation


def entry(point: str, run: Run) -> dict:
    """Returns the results of a finished run.

    Args:
      point: the name of its point in the study.
      run: its records.

    Returns:
      `curve`: rounds, Gbit both ways so far, accuracy and validation accuracy, shares
      of 1, at each evaluation; `positions`, a share of all bits; seed, commit and
      versions.
    """
    stage = run.summary["stages"][-1]
    bits = stage["bits_up"] + stage["bits_down"]
    spent = costs.progress(run)["gbit"]
    curve = [
        [done, float(spent[done]), costs.accuracy(record), record.get("val_accuracy")]
        for done, record in ((run.done(r), r) for r in run.evals)
    ]
    return {
        "point": point,
        "seed": run.config["seed"],
        "curve": curve,
        "positions": stage["bits_positions"] / bits,
        **{name: run.summary[name] for name in ("seconds", "commit", "versions")},
    }


def evals(found: Mapping) -> pd.DataFrame:
    """Returns the evaluations of an entry, after that of a constant answer."""
    columns = ["rounds", "gbit", "accuracy", "validation"]
    curve = [[0, 0.0, MAJORITY, None], *found["curve"]]
    return pd.DataFrame(curve, columns=columns)


def by_point(entries: Sequence[dict], value) -> dict[str, pd.Series]:
    """Returns `value` of an entry's evaluations for each point, by seed."""
    found = {}
    for each in entries:
        found.setdefault(each["point"], {})[each["seed"]] = value(evals(each))
    return {point: pd.Series(values) for point, values in found.items()}


def at_end(table: pd.DataFrame) -> float:
    """Returns the mean accuracy of the evaluations in the last fifth of the rounds."""
    return outcome.reached(table, [np.inf]).tail[0]


def spent(table: pd.DataFrame) -> float:
    """Returns the Gbit of a run."""
    return table["gbit"].iloc[-1]


def within(entries: Sequence[dict], limits: Sequence[float]) -> page.Runs:
    """Returns what the runs of each point, by seed, reach within budgets of Gbit."""
    found = by_point(entries, lambda evaluated: outcome.reached(evaluated, limits))
    return {point: values.to_dict() for point, values in found.items()}


def tables(found: Mapping[str, Sequence[dict]]) -> dict[str, str]:
    """Returns the tables of the page, Markdown by name.

    Args:
      found: the entries of 'tuning', 'study', 'again', 'pooled' and 'torch'.
    """
    runs, again, tries = found["study"], found["again"], found["tuning"]
    gbit = by_point(runs, spent)
    ends = [by_point(entries, at_end) for entries in (runs, again)]
    limits = rules.budgets(gbit[BUDGET].mean())
    reached = [within(entries, limits) for entries in (runs, again)]
    positions = pd.DataFrame(runs).groupby("point")["positions"].mean()
    chosen = by_point(tries, lambda e: e["validation"].iloc[-rules.LEAST :].mean())
    rows = [
        [f"`{name}`", *(_points(e.get(name)) for e in (*ends, *map(_scores, reached)))]
        + [f"{1000 * gbit[name].mean():.0f}", f"{100 * positions[name]:.1f} %"]
        + [f"{gbit[DENSE].mean() / gbit[name].mean():.1f}x"]
        for name in gbit
    ]
    seeds = "0 to 2", "4 to 9"
    head = ["point", *(f"60 rounds, seeds {s}" for s in seeds)]
    head += [f"equal bits, seeds {s}" for s in seeds]
    return {
        "text_study": markdown([*head, "Mbit", "positions", "fewer bits"], rows),
        "text_rounds": _differences(dict(zip(seeds, ends, strict=True)), ROUNDS),
        "text_bits": _answers(reached[0]),
        "text_bits_again": _answers(reached[1]),
        "text_tuning": _tuning(chosen),
        "text_pooled": _pooled(found["pooled"], found["torch"]),
    }


def _answers(reached: page.Runs) -> str:
    pairs = {f"{a} - {b}": (a, b) for a, b in BITS if {a, b} <= reached.keys()}
    return page.answers(page.compare(reached, pairs))


def _scores(reached: page.Runs) -> dict[str, pd.Series]:
    return {
        point: pd.Series({seed: outcome.score(run) for seed, run in of_seed.items()})
        for point, of_seed in reached.items()
    }


def _points(values: pd.Series | None) -> str:
    if values is None:
        return "-"
    return f"{100 * values.mean():.1f} ± {100 * values.std():.1f}"


def _differences(columns: Mapping[str, dict], pairs) -> str:
    found = [
        outcome.paired(ends, [(a, b) for a, b in pairs if {a, b} <= ends.keys()])
        for ends in columns.values()
    ]
    rows = [[f"`{a}` - `{b}`", *(f.get((a, b), "-") for f in found)] for a, b in pairs]
    return markdown(["difference", *(f"seeds {s}" for s in columns)], rows)


def _tuning(values: Mapping[str, pd.Series]) -> str:
    found = {tuple(n.split("-rate=")): 100 * v.iloc[0] for n, v in values.items()}
    names, rates = (list(dict.fromkeys(part)) for part in zip(*found, strict=True))
    rows = [[f"`{n}`", *(f"{found[n, r]:.1f}" for r in rates)] for n in names]
    return markdown(["point", *(f"rate {rate}" for rate in rates)], rows)


def _pooled(ours: Sequence[dict], torch: Sequence[dict]) -> str:
    here, there = by_point(ours, at_end), pd.DataFrame(torch)
    there = there.groupby("point")["accuracy"]
    rows = [
        [f"`{name}`", _points(values), _points(there.get_group(name))]
        for name, values in here.items()
    ]
    return markdown(["trained", "here", "PyTorch, peft"], rows)


def write_sentences(path: str) -> None:
    """Writes tokens and labels of SST-2, as the pooled points read them."""
    point = study.get_study("pooled")[0]
    data = build.build_data(defaults.freeze(point.config))
    rows = data.train.gather()
    arrays = {"x_test": data.x_test, "y_test": data.y_test}
    np.savez(path, x=data.x[rows], y=data.y[rows], **arrays)


def published() -> dict[str, list[dict]]:
    """Returns the committed entries; see `tables`."""
    return json.loads((ROOT / RESULTS).read_text())


def main(*folders: str) -> None:
    """Adds finished runs, PART=FOLDER, to the results, and draws the page if any."""
    found = published()
    for part, _, folder in (each.partition("=") for each in folders):
        check("part", part, found)
        runs = [(g.name, run) for g in read_groups([folder]) for run in g.runs]
        new = [entry(name, run) for name, run in runs if run.summary]
        known = {(e["point"], e["seed"]): e for e in [*found[part], *new]}
        found[part] = [*known.values()]
    write_entries(ROOT / RESULTS, found)
    page = ROOT / PAGE
    for name, text in tables(found).items() if page.exists() else ():
        redraw(page, name, text)


if __name__ == "__main__":
    write_sentences(sys.argv[2]) if "--sentences" in sys.argv else main(*sys.argv[1:])
