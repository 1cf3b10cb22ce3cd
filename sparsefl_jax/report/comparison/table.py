"""Formats a comparison as a Markdown table and as CSV."""

import csv
import io
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sparsefl_jax.core.formats import MISSING, format_percent, format_si
from sparsefl_jax.report.charge import assumptions
from sparsefl_jax.report.comparison import costs, measures
from sparsefl_jax.report.comparison.differences import differing, settings
from sparsefl_jax.report.comparison.evaluations import (
    accuracy,
    best_eval,
    chosen_by,
    final_evals,
    seed_of,
    unfinished,
)
from sparsefl_jax.report.comparison.groups import Group, method_of
from sparsefl_jax.report.comparison.intervals import Interval, interval
from sparsefl_jax.report.comparison.likeness import metric
from sparsefl_jax.report.comparison.measures import Comparison, Entry, compare
from sparsefl_jax.report.lines import finite
from sparsefl_jax.report.load import Run


class Spread(NamedTuple):
    """Mean and deviation of a quantity over a group; None if no run has it."""

    mean: float | None
    std: float | None  # sample deviation (ddof 1); None for fewer than two runs


_PERCENT = ("accuracy", "best", "density", "client_p10", "client_median")
_AMOUNTS = {"gbit": (1e9, "bit"), "pflop": (1e15, ""), "pflop_dense": (1e15, "")}
_HEAD = ["run", "method", "model", "n", "rounds", "accuracy", "best", "density"]
_HEAD += ["clients p10", "clients median", "traffic", "FLOPs", "dense"]
_TEXT_COLUMNS = 3
_FIRST = ["run", "method", "model", "n", "seeds", "rounds", "rounds_std"]


def comparison_table(groups: Sequence[Group]) -> str:
    """Formats groups as a Markdown table with a row for each deployed model.

    Groups of several seeds show the mean and the sample deviation. `accuracy` is that
    of the last evaluation; if the groups' metrics differ (see `evaluate.METRICS`), the
    metric follows the name of the model. `best` belongs to the round of the last stage
    with the best `val_accuracy`, or, without a validation split, the best accuracy on
    the test set. The percentiles are those of the clients' accuracies with the headline
    model. Bits and FLOPs count the completed rounds, also of a run that has not ended.
    The last columns are the fields of the configuration that differ, see `settings`.

    Args:
      groups: as `read_groups` returned them.

    Returns:
      A Markdown table, followed by the packets that a group leaves uncharged by
      assumption, and by what makes groups unlike the first one, without a newline at
      the end.

    Example:
      >>> print(comparison_table([]).splitlines()[0][:44])
      | run | method | model | n | rounds | accura
    """
    entries = compare(groups).entries
    metrics = [metric(group) for group in groups]
    differ, fields = len(set(metrics)) > 1, settings(groups)
    rows = [
        _cells(entry, f"{model} ({metrics[i]})" if differ else model, spreads)
        + [_escaped(values[i]) for values in fields.values()]
        for i, entry in enumerate(entries)
        for model, spreads in _rows(entry.group)
    ]
    head = [*_HEAD, *map(_escaped, fields)]
    rule = ["---"] * _TEXT_COLUMNS + ["--:"] * (len(head) - _TEXT_COLUMNS)
    lines = [f"| {' | '.join(row)} |" for row in [head, rule, *rows]]
    notes = [
        f"{entry.group.name}: {' '.join(assumed)}"
        for entry in entries
        if (assumed := _assumed(entry.group))
    ]
    notes += [
        f"{measures.MARK} {entry.group.name}: another {entry.unlike} than "
        f"{entries[0].group.name}."
        for entry in entries
        if entry.unlike
    ]
    return "\n".join(lines + ([""] if notes else []) + notes)


def comparison_csv(
    groups: Sequence[Group], comparison: Comparison | None = None
) -> str:
    """Formats the same table as CSV: shares, Gbit and PFLOP, deviations as `*_std`.

    Half the widths of 95 % intervals are `*_ci95`. `accuracy_at_gbit_0.4` is the
    headline accuracy at that budget, empty with `*_note` if a run did not reach it, and
    `area_gbit_0.4` the mean accuracy up to it, see `equal_cost`. Fields of the
    configuration that differ between groups have columns of their dotted names.

    Args:
      groups: as `read_groups` returned them.
      comparison: as `compare` made it of them; None for default labels and budgets.

    Returns:
      CSV with a head. Missing values are empty; seeds are separated by spaces.

    Example:
      >>> comparison_csv([]).split(",")[:6]
      ['run', 'method', 'model', 'n', 'seeds', 'rounds']
    """
    comparison = comparison or compare(groups)
    fields, rows = differing(groups), []
    for i, entry in enumerate(comparison.entries):
        equal = _at_equal_cost(comparison, entry)
        named = {name: values[i] for name, values in fields.items()}
        for j, (model, spreads) in enumerate(_rows(entry.group)):
            row = _csv_row(entry, model, spreads)
            row |= equal if j == 0 else dict.fromkeys(equal, "")
            rows.append(row | {n: v for n, v in named.items() if n not in row})
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    out = csv.DictWriter(text, columns or _FIRST, lineterminator="\n")
    out.writeheader()
    out.writerows(rows)
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


def _csv_row(entry: Entry, model: str, spreads: dict[str, Spread]) -> dict:
    """Returns the columns that a group has without regard to the other groups."""
    group = entry.group
    row = {"run": group.name, "method": method_of(group.runs[0]), "model": model}
    row |= {
        "n": len(group.runs),
        "seeds": " ".join(str(seed_of(r)) for r in group.runs),
    }
    for name in ("rounds", *_PERCENT, *_AMOUNTS):
        row |= {name: spreads[name].mean, f"{name}_std": spreads[name].std}
    row |= {"assumed": " ".join(_assumed(group)), "label": entry.label}
    row |= {"unlike": entry.unlike, "metric": metric(group)}
    row |= {"unfinished": sum(map(unfinished, group.runs))}
    row |= {"best_chosen_by": " ".join(sorted(set(map(chosen_by, group.runs))))}
    for name, of in (("accuracy", _last), ("best", _best)):
        row |= {f"{name}_ci95": interval([of(run, model) for run in group.runs]).half}
    return row


def _at_equal_cost(comparison: Comparison, entry: Entry) -> dict:
    """Returns the columns of the headline model at the comparison's budgets."""
    row = {}
    for axis in comparison.axes:
        if axis.name not in ("rounds", *_AMOUNTS):
            values = spread([costs.total(run, axis.name) for run in entry.group.runs])
            row |= {axis.name: values.mean, f"{axis.name}_std": values.std}
        for budget in comparison.budgets[axis.name]:
            found = measures.at_budget(entry, axis, budget)
            name = f"accuracy_at_{axis.name}_{budget:g}"
            row |= _csv_interval(name, found.accuracy) | {f"{name}_note": found.note}
        if (budget := comparison.common_budget(axis)) is not None:
            area = interval(list(measures.areas(entry, axis, budget).values()))
            row |= _csv_interval(f"area_{axis.name}_{budget:g}", area)
    return row


def _csv_interval(name: str, found: Interval) -> dict:
    return {name: found.mean, f"{name}_ci95": found.half}


def _assumed(group: Group) -> list[str]:
    """Describes the packets that the group's runs leave uncharged by assumption."""
    return list(dict.fromkeys(line for run in group.runs for line in assumptions(run)))


def _rows(group: Group) -> list[tuple[str, dict[str, Spread]]]:
    """Returns the quantities over the group's runs for each deployed model."""
    final = [evals[-1] for run in group.runs if (evals := final_evals(run))]
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
    totals = {name: costs.total(run, name) for name in ("rounds", "gbit", "pflop")}
    totals["rounds"] = totals["rounds"] or 0
    return totals | {"pflop_dense": sum(r["flops_dense"] for r in run.train) / 1e15}


def _of_model(run: Run, model: str) -> dict[str, float | None]:
    evals = final_evals(run)
    found = evals[-1]["models"].get(model, {}) if evals else {}
    best = {"best": _best(run, model)}
    return {name: found.get(name) for name in ("accuracy", "density")} | best


def _last(run: Run, model: str) -> float | None:
    evals = final_evals(run)
    return accuracy(evals[-1], model) if evals else None


def _best(run: Run, model: str) -> float | None:
    best = best_eval(run, model)
    return accuracy(best, model) if best else None


def _of_clients(run: Run, headline: bool) -> dict[str, float | None]:
    evals = final_evals(run)
    clients = (evals[-1].get("client_accuracy") or {}) if evals else {}
    names = ("p10", "median")
    return {f"client_{n}": clients.get(n) if headline else None for n in names}


def _cells(entry: Entry, model: str, spreads: dict[str, Spread]) -> list[str]:
    group, rounds = entry.group, spreads["rounds"]
    shares = [format_percent(spreads[q].mean, 2, spreads[q].std) for q in _PERCENT]
    amounts = []
    for name, (scale, unit) in _AMOUNTS.items():
        mean, std = spreads[name]
        mean = None if mean is None else scale * mean
        amounts.append(format_si(mean, unit, None if std is None else scale * std))
    count = f"{rounds.mean:g}" + (f" ± {rounds.std:.3g}" if rounds.std else "")
    name = f"{group.name} {measures.MARK}" if entry.unlike else group.name
    head = [_escaped(text) for text in (name, method_of(group.runs[0]), model)]
    return [*head, str(len(group.runs)), count, *shares, *amounts]


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
