"""Gives every line of a comparison a colour, a line style and a marker of its own.

A method has a colour. Its variants, such as densities, differ in the line style. All
lines differ in the marker, so that they can be told apart without colours.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sparsefl_jax.report.comparison.groups import Group, method_of
from sparsefl_jax.report.figure import COLORS

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">", "h", "*")
_DASHES = ((5, 2), (1.5, 1.5), (6, 2, 1.5, 2), (9, 2), (3, 1, 1, 1, 1, 1))
_STYLES = ("-", *((0, dashes) for dashes in _DASHES))


class Look(NamedTuple):
    """The style of a group's line and points, as matplotlib takes it."""

    color: str
    linestyle: Any
    marker: str


def looks(groups: Sequence[Group]) -> list[Look]:
    """Returns the look of each group.

    Example:
      >>> from pathlib import Path
      >>> from sparsefl_jax.report.load import Run
      >>> runs = [Run(Path("a"), [], [], [0], {"method": m}, {}, None) for m in "aba"]
      >>> a, b, c = looks([Group("", [run]) for run in runs])
      >>> a.color == c.color != b.color, a.linestyle == b.linestyle != c.linestyle
      (True, True)
    """
    colors, variants, found = {}, {}, []
    for i, group in enumerate(groups):
        method = method_of(group.runs[0])
        color = COLORS[colors.setdefault(method, len(colors)) % len(COLORS)]
        variants[color] = variants.get(color, -1) + 1
        style = _STYLES[variants[color] % len(_STYLES)]
        found.append(Look(color, style, MARKERS[i % len(MARKERS)]))
    return found
