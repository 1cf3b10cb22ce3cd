"""Formats a comparison as a table for a terminal and as CSV."""

import csv
import io
from collections.abc import Sequence

from sparsefl_jax.core.formats import MISSING, align, format_si
from sparsefl_jax.report.charge import assumptions
from sparsefl_jax.report.comparison import costs, measures
from sparsefl_jax.report.comparison.differences import differing
from sparsefl_jax.report.comparison.evaluations import (
    chosen_by,
    seed_of,
    unfinished,
)
from sparsefl_jax.report.comparison.groups import Group, method_of
from sparsefl_jax.report.comparison.intervals import Interval, interval
from sparsefl_jax.report.comparison.likeness import metric
from sparsefl_jax.report.comparison.measures import Comparison, Entry, compare

_HEAD = ["run", "n", "rounds", "last %", "best %", "density %", "traffic", "FLOPs"]
_WIDTH = 100  # of a terminal
_FIRST = ["run", "method", "model", "n", "seeds", "rounds", "rounds_std"]


def comparison_table(
    groups: Sequence[Group], comparison: Comparison | None = None
) -> str:
    """Formats groups as a table for a terminal, with a row for each deployed model.

    The rows of a group's other models stand below its headline model. `last` is the
    accuracy of the last evaluation. `best` belongs to the round of the last stage with
    the best `val_accuracy`, or, without a validation split, the best accuracy on the
    test set. `density` is what the deployed model has reached, of all parameters. Bits
    and FLOPs count the completed rounds, also of a run that has not ended. Over `n`
    seeds there is the mean, with half its 95 % interval, as on the page.

    Args:
      groups: as `read_groups` returned them.
      comparison: as `compare` made it of them; None for default labels.

    Returns:
      At most 100 columns of text, followed by the packets that a group leaves uncharged
      by assumption, and by what makes groups unlike the first one, without a newline at
      the end.

    Example:
      >>> print(comparison_table([]).splitlines()[1])
      run  n  rounds  last %  best %  density %  traffic  FLOPs
    """
    entries = (comparison or compare(groups)).entries
    metrics = [metric(entry.group) for entry in entries]
    rows = []
    for entry, whose in zip(entries, metrics, strict=True):
        for index, model in enumerate(measures.models(entry) or [MISSING]):
            label = f"  {model}" if index else entry.label
            label += f" ({whose})" * (len(set(metrics)) > 1)
            rows.append([label, *_cells(entry.group, _quantities(entry, model))])
    others = align([row[1:] for row in [_HEAD, *rows]])
    most = _WIDTH - 2 - max(map(len, others))
    rows = [[_shortened(row[0], most), *row[1:]] for row in rows]
    notes = [
        f"{entry.label}: {' '.join(assumed)}"
        for entry in entries
        if (assumed := _assumed(entry.group))
    ]
    notes += [
        f"{entry.label}: another {entry.unlike} than {entries[0].label}."
        for entry in entries
        if entry.unlike
    ]
    several = any(len(entry.group.runs) > 1 for entry in entries)
    about = "± is half a 95 % interval over n seeds (Student's t)" if several else ""
    caption = "; ".join(
        filter(None, ["accuracy after the last and the best round", about])
    )
    return "\n".join([caption, *align([_HEAD, *rows]), *[""] * bool(notes), *notes])


def comparison_csv(
    groups: Sequence[Group], comparison: Comparison | None = None
) -> str:
    """Formats the same table as CSV: shares, Gbit and PFLOP, deviations as `*_std`.

    Half the widths of 95 % intervals are `*_ci95`. `accuracy_at_gbit_0.4` is the
    headline accuracy at that budget, empty with `*_note` if a run did not reach it, and
    `area_gbit_0.4` the mean accuracy up to it, see `equal_cost`. Fields of the
    configuration that differ between groups have columns of their dotted names;
    `density` is what was reached, and `config.density` what was asked for.

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
        for j, model in enumerate(measures.models(entry) or [MISSING]):
            row = _csv_row(entry, model, headline=j == 0)
            row |= equal if j == 0 else dict.fromkeys(equal, "")
            asked = {f"config.{n}" if n in row else n: v for n, v in named.items()}
            rows.append(row | asked)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    out = csv.DictWriter(text, columns or _FIRST, lineterminator="\n")
    out.writeheader()
    out.writerows(rows)
    return text.getvalue()


def _csv_row(entry: Entry, model: str, headline: bool) -> dict:
    """Returns the columns that a group has without regard to the other groups."""
    group, found = entry.group, _quantities(entry, model)
    row = {
        "run": group.name,
        "method": method_of(group.runs[0]),
        "model": model,
        "n": len(group.runs),
        "seeds": " ".join(str(seed_of(run)) for run in group.runs),
    }
    for name, of_seeds in found.items():
        if name.startswith("client_") and not headline:
            of_seeds = interval([])
        row |= {name: of_seeds.mean, f"{name}_std": of_seeds.std}
    return row | {
        "assumed": " ".join(_assumed(group)),
        "label": entry.label,
        "unlike": entry.unlike,
        "metric": metric(group),
        "unfinished": sum(map(unfinished, group.runs)),
        "best_chosen_by": " ".join(sorted(set(map(chosen_by, group.runs)))),
        **{f"{name}_ci95": found[name].half for name in ("accuracy", "best")},
    }


def _at_equal_cost(comparison: Comparison, entry: Entry) -> dict:
    """Returns the columns of the headline model at the comparison's budgets."""
    row = {}
    for axis in comparison.axes:
        if axis.name not in ("rounds", "gbit", "pflop"):
            total = measures.total(entry, axis.name)
            row |= {axis.name: total.mean, f"{axis.name}_std": total.std}
        for budget in comparison.budgets[axis.name]:
            found = measures.at_budget(entry, axis, budget)
            name = f"accuracy_at_{axis.name}_{budget:g}"
            row |= _csv_interval(name, found.accuracy) | {f"{name}_note": found.note}
        if (budget := comparison.common_budget(axis)) is not None:
            area = measures.of_all(measures.areas(entry, axis, budget))
            row |= _csv_interval(f"area_{axis.name}_{budget:g}", area)
    return row


def _csv_interval(name: str, found: Interval) -> dict:
    return {name: found.mean, f"{name}_ci95": found.half}


def _assumed(group: Group) -> list[str]:
    """Describes the packets that the group's runs leave uncharged by assumption."""
    return list(dict.fromkeys(line for run in group.runs for line in assumptions(run)))


def _quantities(entry: Entry, model: str) -> dict[str, Interval]:
    """Returns the quantities of a deployed model over a group's runs."""
    of = {
        "rounds": lambda run: costs.total(run, "rounds") or 0,
        "accuracy": lambda run: measures.last_accuracy(run, model),
        "best": lambda run: measures.best_accuracy(run, model),
        "density": lambda run: measures.density(run, model),
        "client_p10": lambda run: measures.of_clients(run, "p10"),
        "client_median": lambda run: measures.of_clients(run, "median"),
        "gbit": lambda run: costs.total(run, "gbit"),
        "pflop": lambda run: costs.total(run, "pflop"),
        "pflop_dense": lambda run: sum(r["flops_dense"] for r in run.train) / 1e15,
    }
    return {name: measures.over_seeds(entry, measure) for name, measure in of.items()}


def _cells(group: Group, found: dict[str, Interval]) -> list[str]:
    """Returns a row of the printed table without its label."""
    density, gbit, pflop = (found[n].mean for n in ("density", "gbit", "pflop"))
    return [
        str(len(group.runs)),
        f"{found['rounds'].mean:g}",
        found["accuracy"].percent(),
        found["best"].percent(),
        MISSING if density is None else f"{100 * density:.3g}",
        format_si(None if gbit is None else 1e9 * gbit, "bit"),
        format_si(None if pflop is None else 1e15 * pflop),
    ]


def _shortened(text: str, most: int) -> str:
    """Leaves out the middle of a text that is too long.

    Example:
      >>> _shortened("a_long_method, density 0.05", 20)
      'a_long_me… sity 0.05'
    """
    if len(text) <= most:
        return text
    half = (most - 1) // 2
    return f"{text[:half]}… {text[-(most - half - 2) :]}"
