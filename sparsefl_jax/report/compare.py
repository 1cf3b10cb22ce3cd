"""Compares runs in a table of means and deviations over groups of seeds."""

import csv
import io
import json
import os
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from sparsefl_jax.core.formats import MISSING, format_percent, format_si
from sparsefl_jax.report.charge import assumptions
from sparsefl_jax.report.lines import finite
from sparsefl_jax.report.load import Record, Run, read_run, run_folders


class Group(NamedTuple):
    """Runs of one configuration that differ only in the seed."""

    name: str
    runs: list[Run]


class Spread(NamedTuple):
    """Mean and deviation of a quantity over a group; None if no run has it."""

    mean: float | None
    std: float | None  # sample deviation (ddof 1); None for fewer than two runs


_PERCENT = ("accuracy", "best", "density", "client_p10", "client_median")
_AMOUNTS = {"gbit": (1e9, "bit"), "pflop": (1e15, ""), "pflop_dense": (1e15, "")}
_HEAD = ["run", "method", "model", "n", "rounds", "accuracy", "best", "density"]
_HEAD += ["clients p10", "clients median", "traffic", "FLOPs", "dense"]
_TEXT_COLUMNS = 3


def read_groups(run_dirs: Sequence[str | Path]) -> list[Group]:
    """Reads runs and groups those that differ only in the seed.

    A folder whose `seed_*/` hold runs is a group by itself. Other runs form a group if
    their `config.json` are equal except for `seed` and `seeds`. A repeated seed goes
    into another group, because it is not a further sample.

    Args:
      run_dirs: folders of runs.

    Returns:
      The groups, in the order of their first runs. The name of a group is that of its
      folder, or the common beginning of the names of its folders.

    Raises:
      ValueError: a folder cannot be read, see `run_folders` and `read_run`.

    Example:
      >>> read_groups(["no/such/run"])
      Traceback (most recent call last):
      ValueError: run_dir='no/such/run' expected a folder with metrics.jsonl or seed_*/.
    """
    members, folders, seen = {}, {}, set()
    for run_dir in map(Path, run_dirs):
        for folder in run_folders(run_dir):
            if folder.resolve() in seen:
                continue
            seen.add(folder.resolve())
            run = read_run(folder)
            kind, seed = _kind(run, run_dir)
            copy = 0
            while seed in members.get((kind, copy), ()):
                copy += 1
            members.setdefault((kind, copy), {})[seed] = run
            folders.setdefault((kind, copy), []).append(run_dir.resolve())
    return [
        Group(name, list(runs.values()))
        for name, runs in zip(
            _names(list(folders.values())), members.values(), strict=True
        )
    ]


def comparison_table(groups: Sequence[Group]) -> str:
    """Formats groups as a Markdown table with a row for each deployed model.

    Groups of several seeds show the mean and the sample deviation. `accuracy` is that
    of the last evaluation; if the groups' metrics differ (see `evaluate.METRICS`), the
    metric follows the name of the model. `best` belongs to the round of the last stage
    with the best `val_accuracy`, or, without a validation split, the best accuracy on
    the test set. The percentiles are those of the clients' accuracies with the headline
    model. Bits and FLOPs count the completed rounds, also of a run that has not ended.

    Args:
      groups: as `read_groups` returned them.

    Returns:
      A Markdown table, followed by the packets that a group leaves uncharged by
      assumption, without a newline at the end.

    Example:
      >>> print(comparison_table([]).splitlines()[0][:44])
      | run | method | model | n | rounds | accura
    """
    metrics = [_metric(group) for group in groups]
    differ = len(set(metrics)) > 1
    rows = [
        _cells(group, f"{model} ({metric})" if differ else model, spreads)
        for group, metric in zip(groups, metrics, strict=True)
        for model, spreads in _rows(group)
    ]
    rule = ["---"] * _TEXT_COLUMNS + ["--:"] * (len(_HEAD) - _TEXT_COLUMNS)
    lines = [f"| {' | '.join(row)} |" for row in [_HEAD, rule, *rows]]
    notes = [
        f"{group.name}: {' '.join(assumed)}"
        for group in groups
        if (assumed := _assumed(group))
    ]
    return "\n".join(lines + ([""] if notes else []) + notes)


def comparison_csv(groups: Sequence[Group]) -> str:
    """Formats the same table as CSV: shares, Gbit and PFLOP, deviations as `*_std`.

    Args:
      groups: as `read_groups` returned them.

    Returns:
      CSV with a head. Missing values are empty; seeds are separated by spaces.

    Example:
      >>> comparison_csv([]).split(",")[:6]
      ['run', 'method', 'model', 'n', 'seeds', 'rounds']
    """
    quantities = ("rounds", *_PERCENT, *_AMOUNTS)
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    columns = [column for q in quantities for column in (q, f"{q}_std")]
    out.writerow(["run", "method", "model", "n", "seeds", *columns, "assumed"])
    for group in groups:
        seeds = " ".join(str(run.config.get("seed", MISSING)) for run in group.runs)
        for model, spreads in _rows(group):
            values = [x for q in quantities for x in spreads[q]]
            head = [group.name, method_of(group.runs[0]), model, len(group.runs), seeds]
            out.writerow([*head, *values, " ".join(_assumed(group))])
    return text.getvalue()


def spread(values: Sequence[float | None]) -> Spread:
    """Returns the mean and the sample deviation of the finite values.

    Example:
      >>> spread([1.0, 3.0, None])
      Spread(mean=2.0, std=1.4142135623730951)
      >>> spread([5])
      Spread(mean=5, std=None)
    """
    values = [x for x in values if finite(x)]
    return Spread(
        statistics.mean(values) if values else None,
        statistics.stdev(values) if len(values) > 1 else None,
    )


def training_pflop(run: Run, record: Record) -> float:
    """Returns the PFLOPs (1e15) of training at the masks up to a record's round."""
    if record.get("pflop_cumulative") is not None:
        return record["pflop_cumulative"]
    end = (record["stage"], record["round"])
    return sum(r["flops"] for r in run.train if (r["stage"], r["round"]) <= end) / 1e15


def _kind(run: Run, run_dir: Path) -> tuple[str, int | str | None]:
    """Returns a key that the runs of a group share, and the seed of this run."""
    if run.path != run_dir:
        return str(run_dir.resolve()), run.path.name
    if not run.config:
        return str(run_dir.resolve()), None
    rest = {k: v for k, v in run.config.items() if k not in ("seed", "seeds")}
    return json.dumps(rest, sort_keys=True), run.config.get("seed")


def _assumed(group: Group) -> list[str]:
    """Describes the packets that the group's runs leave uncharged by assumption."""
    return list(dict.fromkeys(line for run in group.runs for line in assumptions(run)))


def _metric(group: Group) -> str:
    """Returns the metric of the last evaluations, 'pooled' or 'clients'."""
    last = [run.evals[-1].get("metric") for run in group.runs if run.evals]
    return ", ".join(sorted({metric or MISSING for metric in last})) or MISSING


def _rows(group: Group) -> list[tuple[str, dict[str, Spread]]]:
    """Returns the quantities over the group's runs for each deployed model."""
    final = [run.evals[-1] for run in group.runs if run.evals]
    models = list(dict.fromkeys(name for e in final for name in e["models"]))
    shared = _quantities(group, _totals)
    rows = []
    for index, model in enumerate(models or [MISSING]):
        spreads = _quantities(group, lambda run, m=model: _of_model(run, m))
        of_clients = _quantities(group, lambda run, i=index: _of_clients(run, i == 0))
        rows.append((model, shared | spreads | of_clients))
    return rows


def _quantities(group: Group, measure: Callable[[Run], dict]) -> dict[str, Spread]:
    measured = [measure(run) for run in group.runs]
    return {name: spread([m[name] for m in measured]) for name in measured[0]}


def _totals(run: Run) -> dict[str, float | None]:
    last = [*run.train[-1:], *run.evals[-1:]]
    rounds = max((run.starts[r["stage"]] + r["round"] for r in last), default=0)
    return {
        "rounds": rounds,
        "gbit": max((r["gbit_cumulative"] for r in last), default=None),
        "pflop": max((training_pflop(run, r) for r in last), default=None),
        "pflop_dense": sum(r["flops_dense"] for r in run.train) / 1e15,
    }


def _of_model(run: Run, model: str) -> dict[str, float | None]:
    evals = [e for e in run.evals if e["stage"] == run.evals[-1]["stage"]]
    final = evals[-1]["models"].get(model, {}) if evals else {}
    valid = [e for e in evals if finite(e["models"].get(model, {}).get("accuracy"))]
    chosen = max(valid, key=lambda e: _choice(e, model), default=None)
    return {
        "accuracy": final.get("accuracy"),
        "best": chosen["models"][model]["accuracy"] if chosen else None,
        "density": final.get("density"),
    }


def _choice(record: Record, model: str) -> tuple[bool, float]:
    known = finite(record.get("val_accuracy"))
    judged = record if known else record["models"][model]
    return known, judged["val_accuracy" if known else "accuracy"]


def _of_clients(run: Run, headline: bool) -> dict[str, float | None]:
    clients = (run.evals[-1].get("client_accuracy") or {}) if run.evals else {}
    names = ("p10", "median")
    return {f"client_{n}": clients.get(n) if headline else None for n in names}


def _cells(group: Group, model: str, spreads: dict[str, Spread]) -> list[str]:
    rounds = spreads["rounds"]
    shares = [format_percent(spreads[q].mean, 2, spreads[q].std) for q in _PERCENT]
    amounts = []
    for name, (scale, unit) in _AMOUNTS.items():
        mean, std = spreads[name]
        mean = None if mean is None else scale * mean
        amounts.append(format_si(mean, unit, None if std is None else scale * std))
    count = f"{rounds.mean:g}" + (f" ± {rounds.std:.3g}" if rounds.std else "")
    head = [_escaped(group.name), _escaped(method_of(group.runs[0])), _escaped(model)]
    return [*head, str(len(group.runs)), count, *shares, *amounts]


def method_of(run: Run) -> str:
    """Returns the name of a run's method; two stages are joined by a plus sign."""
    configured = (run.config.get("algorithm") or {}).get("name") or MISSING
    method = run.summary.get("method") or configured
    first = (run.config.get("first_stage") or {}).get("name")
    return f"{first} + {method}" if first else method


def _names(folders: Sequence[Sequence[Path]]) -> list[str]:
    """Names groups by their folders, or by the whole path if the name is not unique.

    The name of several folders is what their names have in common.
    """
    names = []
    for paths in folders:
        # Whole words and numbers: a_10 and a_11 have `a` in common, not `a_1`.
        parts = [re.findall(r"\d+|[^\W\d_]+|[\W_]", path.name) for path in paths]
        common = "".join(os.path.commonprefix(parts)).rstrip("_-. ")
        names.append(common or paths[0].name)
    return [
        name if names.count(name) == 1 else str(paths[0])
        for name, paths in zip(names, folders, strict=True)
    ]


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
