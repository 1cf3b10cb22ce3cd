"""Formats a comparison as a table for a terminal, as CSV and as LaTeX."""

from typing import Any

from sparsefl_jax.core.formats import MISSING, align, format_si
from sparsefl_jax.report.charge import assumptions
from sparsefl_jax.report.comparison.differences import differing
from sparsefl_jax.report.comparison.evaluations import chosen_by, seed_of
from sparsefl_jax.report.comparison.groups import method_of
from sparsefl_jax.report.comparison.likeness import metric
from sparsefl_jax.report.comparison.measures import Comparison, Entry
from sparsefl_jax.report.lines import shortened
from sparsefl_jax.report.load import finite

_HEAD = ["run", "n", "rounds", "last %", "best %", "density %", "traffic", "FLOPs"]
_FIRST = ["run", "method", "model", "n", "seeds", "rounds"]
_WIDTH = 100  # of a terminal


def comparison_table(comparison: Comparison) -> str:
    """Formats a table for a terminal, with a row for each deployed model.

    The rows of a group's other models stand below its headline model. `last` is the
    accuracy of the last evaluation. `best` belongs to the round of the last stage with
    the best `val_accuracy`, or, without a validation split, the best accuracy on the
    test set. `density` is what the deployed model has reached, of all parameters. Bits
    and FLOPs count the completed rounds, also of a run that has not ended. Over `n`
    seeds there is the mean, with half its 95 % interval, as on the page.

    Args:
      comparison: as `compare` made it.

    Returns:
      At most 100 columns of text, followed by the packets that a group leaves uncharged
      by assumption, and by what makes groups unlike the first one, without a newline at
      the end.

    Example:
      >>> from sparsefl_jax.report import compare
      >>> print(comparison_table(compare([])).splitlines()[1])
      run  n  rounds  last %  best %  density %  traffic  FLOPs
    """
    entries = comparison.entries
    rows = _rows(comparison)
    others = align([row[1:] for row in [_HEAD, *rows]])
    most = _WIDTH - 2 - max(map(len, others))
    rows = [[shortened(row[0], most), *row[1:]] for row in rows]
    notes = [
        f"{entry.label}: {' '.join(assumed)}"
        for entry in entries
        if (assumed := assumed_by(entry))
    ]
    notes += _unlike(comparison)
    caption = "accuracy after the last and the best round"
    if any(len(entry.group.runs) > 1 for entry in entries):
        caption += "; ± is half a 95 % interval over n seeds (Student's t)"
    return "\n".join([caption, *align([_HEAD, *rows]), *[""] * bool(notes), *notes])


def comparison_csv(comparison: Comparison) -> str:
    r"""Formats the same table as CSV: shares, Gbit and PFLOP, deviations as `*_std`.

    Half the widths of 95 % intervals are `*_ci95`. `accuracy_at_gbit_0.4` is the
    headline accuracy at that budget, empty with `*_note` if a run did not reach it, and
    `area_gbit_0.4` the mean accuracy up to it, see `costs`. Fields of the
    configuration that differ between groups have columns of their dotted names;
    `density` is the one reached, and `config.density` the one configured.

    Args:
      comparison: as `compare` made it.

    Returns:
      CSV with a head. Missing values are empty; seeds are separated by spaces.

    Example:
      >>> from sparsefl_jax.report import compare
      >>> comparison_csv(compare([]))
      'run,method,model,n,seeds,rounds\n'
    """
    import pandas as pd

    fields = differing([entry.group for entry in comparison.entries])
    rows = []
    shown = [(n, s) for n in comparison.seeds for s in ("mean", "std", "ci95")]
    numbers = comparison.models[shown]
    numbers.columns = [n if s == "mean" else f"{n}_{s}" for n, s in shown]
    at = [name for axis in comparison.axes for name in comparison.at(axis).values()]
    for (line, rank, model), found in numbers.iterrows():
        entry = comparison.entries[line]
        runs = entry.group.runs
        row = {
            "run": entry.group.name,
            "method": method_of(runs[0]),
            "model": model,
            "n": len(runs),
            "seeds": " ".join(str(seed_of(run)) for run in runs),
        }
        row |= found.to_dict()
        row |= {f"{n}_note": comparison.notes.get((line, n)) for n in at if not rank}
        row |= {
            "assumed": " ".join(assumed_by(entry)),
            "label": entry.label,
            "unlike": entry.unlike,
            "metric": metric(entry.group),
            "unfinished": sum(not run.summary for run in runs),
            "best_chosen_by": " ".join(sorted(set(map(chosen_by, runs)))),
        }
        asked = {f"config.{n}" if n in row else n: v[line] for n, v in fields.items()}
        rows.append(row | asked)
    table = pd.DataFrame(rows, columns=None if rows else _FIRST)
    return table.to_csv(index=False, lineterminator="\n")


def latex_table(comparison: Comparison) -> str:
    r"""Formats the table for a terminal as a `tabular`.

    Args:
      comparison: as `compare` made it.

    Returns:
      LaTeX for the package booktabs. Comments say what the numbers are and which lines
      are unlike the first.

    Example:
      >>> from sparsefl_jax.report import compare
      >>> print(latex_table(compare([])).splitlines()[2])
      \begin{tabular}{lrrrrrrr}
    """
    import pandas as pd

    table = pd.DataFrame(_rows(comparison), columns=_HEAD)
    shape = "l" + "r" * (len(_HEAD) - 1)
    return (
        "% \\usepackage{booktabs}\n"
        "% Means over n seeds, with half of a 95 % interval (Student's t).\n"
        + table.to_latex(index=False, escape=True, column_format=shape)
        + "".join(f"% {note}\n" for note in _unlike(comparison))
    )


def _rows(comparison: Comparison) -> list[list[str]]:
    """Returns a row for each line and deployed model, under `_HEAD`."""
    entries = comparison.entries
    metrics = [metric(entry.group) for entry in entries]
    rows = []
    for (line, rank, model), of in comparison.models.iterrows():
        entry = entries[line]
        label = f"  {model}" if rank else entry.label
        label += f" ({metrics[line]})" * (len(set(metrics)) > 1)
        density, gbit, pflop = (of[n, "mean"] for n in ("density", "gbit", "pflop"))
        rows.append(
            [
                label,
                str(len(entry.group.runs)),
                f"{of['rounds', 'mean']:g}",
                percent(of["accuracy"]),
                percent(of["best"]),
                f"{100 * density:.3g}" if finite(density) else MISSING,
                format_si(1e9 * gbit, "bit"),
                format_si(1e15 * pflop),
            ]
        )
    return rows


def _unlike(comparison: Comparison) -> list[str]:
    """Returns a sentence for each line that is unlike the first."""
    entries = comparison.entries
    return [
        f"{entry.label}: another {entry.unlike} than {entries[0].label}."
        for entry in entries
        if entry.unlike
    ]


def percent(found: Any) -> str:
    """Formats a share in percent, with half its interval if it has one.

    Args:
      found: with `mean` and `ci95`, which may be NaN.

    Example:
      >>> percent({"mean": 0.5, "ci95": 0.01}), percent({"mean": float("nan")})
      ('50.0 ± 1.0', '-')
    """
    if not finite(found["mean"]):
        return MISSING
    half = f" ± {100 * found['ci95']:.1f}" if finite(found["ci95"]) else ""
    return f"{100 * found['mean']:.1f}{half}"


def assumed_by(entry: Entry) -> list[str]:
    """Describes the packets that the group's runs leave uncharged by assumption."""
    runs = entry.group.runs
    return list(dict.fromkeys(line for run in runs for line in assumptions(run)))
