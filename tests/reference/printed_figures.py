"""The figures that papers print and that need no training: read, and settled by tests.

`docs/printed_figures.md` has a row for each, as printed and as it comes out here.
"""

import math
import re
from pathlib import Path
from typing import NamedTuple

DOCUMENT = Path(__file__).parents[2] / "docs" / "printed_figures.md"
CLASSES = ("simulated", "network", "arithmetic", "differs")
# Not rounded but cut off, as all that FedSparsify simulates.
CUT = {
    "Table 2, CIFAR-100, FedAvg: Gbit",
    "Table 2, CIFAR-10, SpaFL: Gbit",
    "Table 2, full, p = 0.5: client sparsity",
    "Table 2, full, p = 0.6: client sparsity",
    "Table 4, CIFAR-10, d = 0.1: savings",
}
# Not to the last digit, but as near, relative.
NEAR = {
    "Table 2, FMNIST, FedAvg: 1e11 FLOPs": 0.003,
    "Table 2, CIFAR-100, FedAvg: 1e14 FLOPs": 0.003,
}


class Figure(NamedTuple):
    """A row of the table."""

    paper: str
    place: str
    printed: str  # in parentheses: follows from print, or lies behind it
    ours: str
    kind: str  # a name in CLASSES
    test: str  # the id of the test that settles it

    def agrees(self, value: float) -> bool:
        """Tells whether a value has the digits that are printed."""
        printed = self.printed.strip("()")
        if self.place in NEAR:
            return math.isclose(value, float(printed), rel_tol=NEAR[self.place])
        cut = (self.paper, self.kind) == ("FedSparsify", "simulated")
        return _reads(value, printed, *((0, 1) if cut or self.place in CUT else ()))


def table() -> list[Figure]:
    """Returns the document's rows."""
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    cells = [re.split(r"\s*\|\s*", line.strip("| ")) for line in lines if "|" in line]
    return [Figure(*row[:5], row[5].strip("`")) for row in cells[2:] if len(row) == 6]


def settle(test: str, found: dict[str, float]) -> None:
    """Fails where a figure of a test is not what is printed, or what the table says.

    Args:
      test: its id.
      found: what comes out, by place.
    """
    figures = {figure.place: figure for figure in table() if figure.test == test}
    assert found.keys() == figures.keys()
    for place, value in found.items():
        figure = figures[place]
        assert _reads(value, figure.ours), f"{value}: {figure}"
        assert figure.agrees(value) != (figure.kind == "differs"), f"{value}: {figure}"


def _reads(value: float, text: str, low=-0.5, high=0.5) -> bool:
    """Tells whether a value has these digits."""
    unit, error = 10.0 ** -len(text.partition(".")[2]), 1e-9 * abs(value)
    return low * unit - error <= value - float(text) <= high * unit + error
