"""Formats a comparison for a terminal, as CSV and LaTeX, and finds methods' papers."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparsefl_jax.core.formats import MISSING, align, format_si
from sparsefl_jax.report.comparison import VALIDATION, Comparison
from sparsefl_jax.report.costs import chosen_by
from sparsefl_jax.report.differences import compare_fields, fields
from sparsefl_jax.report.groups import Group, method_of, metric, seed_of
from sparsefl_jax.report.load import is_finite
from sparsefl_jax.report.tables import assumptions

_PAPERS = Path(__file__).with_name("methods.bib")
_SHARES = {"val": VALIDATION, "last": "accuracy", "best": "best"}
_SHARES |= {clients: f"{clients}_accuracy" for clients in ("seen", "unseen")}


def comparison_table(comparison: Comparison) -> str:
    """Formats a table for a terminal, with a row for each deployed model.

    The rows of a group's other models stand below its headline model. `last` is the
    accuracy of the last evaluation, and `val` its `val_accuracy`, if any run has a
    validation split; `seen` and `unseen` are those of clients that train and of those
    that never do, if there are any. `best` belongs to the round of the last stage with
    the best `val_accuracy`, or, without a validation split, the best accuracy on the
    test set. `density` is what the deployed model has reached, of all parameters. Bits
    and FLOPs count the completed rounds, also of a run that has not ended. Over `n`
    seeds there is the mean, with half its 95 % interval, as on the page.

    Args:
      comparison: as `compare` made it.

    Returns:
      Aligned columns, followed by the packets that a group leaves uncharged by
      assumption, and by what makes groups unlike the first one, without a newline at
      the end.

    Example:
      >>> from sparsefl_jax.report import compare
      >>> print(comparison_table(compare([])).splitlines()[1])
      run  n  rounds  last %  best %  density %  traffic  FLOPs
    """
    groups = comparison.groups
    assumed = {group.label: " ".join(assumed_by(group)) for group in groups}
    notes = [f"{label}: {text}" for label, text in assumed.items() if text]
    notes += _unlike(comparison)
    caption = f"{comparison.measure} after the last and the best round"
    if any(len(group.runs) > 1 for group in groups):
        caption += "; ± is half a 95 % interval over n seeds (Student's t)"
    return "\n".join([caption, *align(_rows(comparison)), *[""] * bool(notes), *notes])


def comparison_csv(comparison: Comparison) -> str:
    r"""Formats the same table as CSV: shares, Gbit and PFLOP, deviations as `*_std`.

    Half the widths of 95 % intervals are `*_ci95`. `accuracy_at_gbit_0.4` is the
    headline accuracy at that budget, empty if a run did not reach it, and
    `area_gbit_0.4` the mean accuracy up to it, see `costs`. Fields of the configuration
    that differ between groups have columns of their dotted names; `density` is the one
    reached, and `config.density` the one configured.

    Args:
      comparison: as `compare` made it.

    Returns:
      CSV with a head. Missing values are empty; seeds are separated by spaces.
    """
    import pandas as pd

    differ = compare_fields(comparison.groups).differing
    rows = []
    shown = [(n, s) for n in comparison.seeds for s in ("mean", "std", "ci95")]
    numbers = comparison.models[shown]
    names = [n if s == "mean" else f"{n}_{s}" for n, s in shown]
    numbers.columns = [n.replace("accuracy", comparison.measure) for n in names]
    for (line, _, model), found in numbers.iterrows():
        group = comparison.groups[line]
        runs = group.runs
        seeds = " ".join(str(seed_of(run)) for run in runs)
        row = {"run": group.name, "method": method_of(runs[0]), "model": model}
        row |= {"n": len(runs), "seeds": seeds, **found.to_dict()}
        row |= {
            "assumed": " ".join(assumed_by(group)),
            "label": group.label,
            "unlike": group.unlike,
            "metric": metric(group),
            "unfinished": sum(not run.summary for run in runs),
            "best_chosen_by": " ".join(sorted(set(map(chosen_by, runs)))),
        }
        asked = {f"config.{n}" if n in row else n: v[line] for n, v in differ.items()}
        rows.append(row | asked)
    return pd.DataFrame(rows).to_csv(index=False, lineterminator="\n")


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

    head, *rows = _rows(comparison)
    table = pd.DataFrame(rows, columns=head)
    shape = "l" + "r" * (len(head) - 1)
    return (
        "% \\usepackage{booktabs}\n"
        "% Means over n seeds, with half of a 95 % interval (Student's t).\n"
        + table.to_latex(index=False, escape=True, column_format=shape)
        + "".join(f"% {note}\n" for note in _unlike(comparison))
    )


def describe_choice(comparison: Comparison, swept: Sequence[str]) -> str:
    """Says in one line what validation chooses.

    Args:
      comparison: of runs with a validation split.
      swept: the fields of a sweep, which name the choice; without any its label does.
    """
    group = comparison.groups[comparison.chosen]
    known, found = fields(group), comparison.lines.loc[comparison.chosen]
    named = ", ".join(f"{name}={known[name]}" for name in swept if name in known)
    measure = comparison.measure
    unit = " %" * (measure == "accuracy")
    values = (percent(found[n], "", measure) for n in (VALIDATION, "accuracy"))
    score, test = (value + unit for value in values)
    return f"validation chooses {named or group.label}: {score} (test {test})"


def _rows(comparison: Comparison) -> list[list[str]]:
    """Returns a head, and a row for each line and deployed model."""
    groups = comparison.groups
    metrics = [metric(group) for group in groups]
    known = set(comparison.models.columns.get_level_values(0))
    shown = {title: name for title, name in _SHARES.items() if name in known}
    unit = " %" * (comparison.measure == "accuracy")
    titles = [title + unit for title in shown]
    rows = [["run", "n", "rounds", *titles, "density %", "traffic", "FLOPs"]]
    for (line, rank, model), of in comparison.models.iterrows():
        label = f"  {model}" if rank else groups[line].label
        label += f" ({metrics[line]})" * (len(set(metrics)) > 1)
        density, gbit, pflop = (of[n, "mean"] for n in ("density", "gbit", "pflop"))
        shares = [percent(of[n], "", comparison.measure) for n in shown.values()]
        density = f"{100 * density:.3g}" if is_finite(density) else MISSING
        spent = format_si(1e9 * gbit, "bit"), format_si(1e15 * pflop)
        n = str(len(groups[line].runs))
        rows.append([label, n, f"{of['rounds', 'mean']:g}", *shares, density, *spent])
    return rows


def _unlike(comparison: Comparison) -> list[str]:
    """Returns a sentence for each line that is unlike the first."""
    groups = comparison.groups
    return [
        f"{group.label}: another {group.unlike} than {groups[0].label}."
        for group in groups
        if group.unlike
    ]


def percent(found: Any, sign: str = "", measure: str = "accuracy") -> str:
    """Formats a value, a share in percent, with half its interval if it has one.

    Args:
      found: with `mean` and `ci95`, which may be NaN.
      sign: '+' to give positive values a sign too.
      measure: of the value; of another than the accuracy it has four digits.

    Example:
      >>> percent({"mean": 0.5, "ci95": 0.01}), percent({"mean": float("nan")})
      ('50.0 ± 1.0', '-')
      >>> percent({"mean": 2.5, "ci95": 0.125}, measure="rmse")
      '2.5 ± 0.125'
    """
    if not is_finite(found["mean"]):
        return MISSING
    scale, form = (100, ".1f") if measure == "accuracy" else (1, ".4g")
    known = is_finite(found["ci95"])
    half = f" ± {scale * found['ci95']:{form}}" if known else ""
    return f"{scale * found['mean']:{sign}{form}}{half}"


def assumed_by(group: Group) -> list[str]:
    """Describes the packets that the group's runs leave uncharged by assumption."""
    runs = group.runs
    return list(dict.fromkeys(line for run in runs for line in assumptions(run)))


def papers(groups: Sequence[Group]) -> list[str]:
    """Returns the papers of the methods of runs, of their first stages too.

    Args:
      groups: as `read_groups` returned them.

    Returns:
      The BibTeX entry of each paper, in the order of the file. Methods of one's own
      have none.
    """
    names = set()
    for group in groups:
        config = group.runs[0].config
        sections = [config.get(s) or {} for s in ("first_stage", "algorithm")]
        names.update(str(section.get("name")) for section in sections)
        if (config.get("server_optimizer") or {}).get("name"):
            names.add("server_optimizer")
    return [entry for entry, methods in entries().items() if names & set(methods)]


def entries() -> dict[str, list[str]]:
    """Returns the methods, which are the keywords, of each entry of `methods.bib`.

    Example:
      >>> [e.split(",")[0] for e, methods in entries().items() if "snip" in methods]
      ['@inproceedings{lee2019snip']
    """
    text = _PAPERS.read_text(encoding="utf-8")
    found = re.findall(r"^@\w+\{.*?^\}", text, re.S | re.M)
    return {x: re.search(r"keywords *= \{(.*)\}", x)[1].split(", ") for x in found}
