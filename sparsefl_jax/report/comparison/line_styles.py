"""Gives every line of a comparison a colour, a line style and a marker of its own.

A method has a colour. Its variants, such as densities, differ in the line style. All
lines differ in the marker, so that they can be told apart without colours.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sparsefl_jax.report.comparison.groups import Group, method_of

# Okabe and Ito's palette for colour-blind readers, without its yellow.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">", "h", "*")
_DASHES = ((None, None), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2), (9, 2), (3, 1, 1, 1, 1, 1))


class Look(NamedTuple):
    """The style of a group's line and points."""

    color: str
    dashes: tuple[float | None, ...]  # points drawn and left out; None if solid
    marker: str

    @property
    def linestyle(self):
        """The dashes as matplotlib takes them."""
        return "-" if self.dashes[0] is None else (0, self.dashes)


def looks(groups: Sequence[Group]) -> list[Look]:
    """Returns the look of each group.

    Example:
      >>> from pathlib import Path
      >>> from sparsefl_jax.report.load import Run
      >>> runs = [Run(Path("a"), [], [], [0], {"method": m}, {}, None) for m in "aba"]
      >>> a, b, c = looks([Group("", [run]) for run in runs])
      >>> a.color == c.color != b.color, a.dashes == b.dashes != c.dashes
      (True, True)
    """
    colors, variants, found = {}, {}, []
    for i, group in enumerate(groups):
        method = method_of(group.runs[0])
        color = PALETTE[colors.setdefault(method, len(colors)) % len(PALETTE)]
        variants[color] = variants.get(color, -1) + 1
        dashes = _DASHES[variants[color] % len(_DASHES)]
        found.append(Look(color, dashes, MARKERS[i % len(MARKERS)]))
    return found
