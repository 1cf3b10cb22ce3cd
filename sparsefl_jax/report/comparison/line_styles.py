"""Gives every line of a comparison a colour, a line style and a marker of its own.

A method has a colour. Its variants, such as densities, differ in the line style. All
lines differ in the marker, so that they can be told apart without colours. Lines that
coincide take turns: each draws its piece of a period and every other marker.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sparsefl_jax.report.comparison.groups import Group, method_of

# Okabe and Ito's palette for colour-blind readers, without its yellow.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">", "h", "*")
_DASHES = ((None, None), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2), (9, 2), (3, 1, 1, 1, 1, 1))

_PERIOD = 12.0  # line widths in which lines that coincide take turns


class Look(NamedTuple):
    """The style of a group's line and points."""

    color: str
    dashes: tuple[float | None, ...]  # points drawn and left out; None if solid
    marker: str

    @property
    def linestyle(self):
        """The dashes as matplotlib takes them."""
        return "-" if self.dashes[0] is None else (0, self.dashes)


class Turn(NamedTuple):
    """The place of a line among those that coincide with it.

    As matplotlib's `markevery` it gives each line every other marker.
    """

    place: int = 0
    of: int = 1  # lines that coincide, this one included

    def linestyle(self, look: Look):
        """Returns a line style in which the lines of a place each leave gaps."""
        if self.of == 1:
            return look.linestyle
        piece = _PERIOD / self.of
        return (-self.place * piece % _PERIOD, (piece, _PERIOD - piece))


def turns(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[Turn]:
    """Returns the turns of curves, of which some may coincide.

    Args:
      curves: x, increasing, and y of each, [n]; empty ones coincide with none. Two
        coincide if over their common x they are nowhere further apart than a hundredth
        of what all of them span.

    Example:
      >>> x, y = np.arange(3.0), np.array([0.0, 50.0, 100.0])
      >>> turns([(x, y), (x, y[::-1]), (x, y + 0.5)])
      [Turn(place=0, of=2), Turn(place=0, of=1), Turn(place=1, of=2)]
    """
    spans = [y for _, y in curves if len(y)]
    height = np.ptp(np.concatenate(spans)) if spans else 0.0
    groups: list[list[int]] = []
    for i, curve in enumerate(curves):
        for group in groups:
            if _coincide(curves[group[0]], curve, 0.01 * height):
                group.append(i)
                break
        else:
            groups.append([i])
    places = {i: Turn(g.index(i), len(g)) for g in groups for i in g}
    return [places[i] for i in range(len(curves))]


def _coincide(one: tuple, other: tuple, tolerance: float) -> bool:
    """Tells whether two curves are nowhere further apart, over their common x."""
    if not len(one[0]) or not len(other[0]):
        return False
    low, high = max(one[0][0], other[0][0]), min(one[0][-1], other[0][-1])
    x = np.union1d(one[0], other[0])
    x = x[(low <= x) & (x <= high)]
    gaps = np.abs(np.interp(x, *one) - np.interp(x, *other))
    return len(x) > 0 and bool(np.all(gaps <= tolerance))


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
