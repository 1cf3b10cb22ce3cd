"""Formats a comparison as a LaTeX table."""

from sparsefl_jax.report.comparison import measures
from sparsefl_jax.report.comparison.intervals import Interval
from sparsefl_jax.report.comparison.measures import Comparison

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "…": r"\ldots{}",
    measures.MARK: r"\dag{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}


def latex_table(comparison: Comparison) -> str:
    r"""Formats accuracy, density and costs of every line as a `tabular`.

    Args:
      comparison: as `compare` made it.

    Returns:
      LaTeX for the package booktabs. Numbers are means with half the width of their
      95 % intervals over seeds.

    Example:
      >>> print(latex_table(Comparison([], [], {})).splitlines()[2])
      \begin{tabular}{lrrrr}
    """
    axes = [axis for axis in comparison.axes if axis.name != "rounds"]
    budgets = [
        (axis, budget)
        for axis in axes[:1]
        if (budget := comparison.common_budget(axis)) is not None
    ]
    head = [
        *("", "seeds", r"last [\%]", r"best [\%]", r"density [\%]"),
        *(_escaped(axis.title) for axis in axes),
        *(rf"at {_escaped(axis.text(budget))} [\%]" for axis, budget in budgets),
    ]
    lines = [" & ".join(head) + r" \\", r"\midrule"]
    for entry in comparison.entries:
        shares = (measures.last_accuracy, measures.best_accuracy, measures.density)
        reached = [measures.at_budget(entry, *pair) for pair in budgets]
        cells = [
            _escaped(entry.label),
            str(len(entry.group.runs)),
            *(_percent(measures.over_seeds(entry, of)) for of in shares),
            *(_escaped(a.text(measures.total(entry, a.name).mean)) for a in axes),
            *(_escaped(at.note) or _percent(at.accuracy) for at in reached),
        ]
        lines.append(" & ".join(cells) + r" \\")
    notes = [
        f"% {_escaped(entry.label)} has another {entry.unlike} than the first line."
        for entry in comparison.entries
        if entry.unlike
    ]
    columns = "l" + "r" * (len(head) - 1)
    return "\n".join(
        [
            r"% \usepackage{booktabs}",
            "% Means over seeds, with half of a 95 % interval (Student's t).",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            *notes,
            "",
        ]
    )


def _percent(found: Interval) -> str:
    if found.mean is None:
        return "--"
    text = found.percent().replace("±", r"\pm")
    return f"${text}$"


def _escaped(text: str) -> str:
    return "".join(_SPECIAL.get(letter, letter) for letter in text)
