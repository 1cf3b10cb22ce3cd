"""Curves and points that coincide stay visible in a comparison's figures."""

import numpy as np
from matplotlib.figure import Figure

from sparsefl_jax.report.comparison import figures
from sparsefl_jax.report.comparison.figures import Point
from sparsefl_jax.report.comparison.line_styles import MARKERS, PALETTE, Look, turns

X, Y = np.arange(5.0), np.array([0.0, 0.3, 0.5, 0.6, 0.7])
LOOKS = [Look(PALETTE[i], (None, None), MARKERS[i]) for i in range(3)]


def drawn(turn, look):
    """Returns where a line is drawn, by tenths of the period of 12 line widths."""
    line = figures._line(Figure().subplots(), X, Y, look, turn, marked=True)
    if line.is_dashed():
        offset, (on, _) = turn.linestyle(look)
        return [(s / 10 + offset) % 12 < on - 1e-9 for s in range(120)], line
    return [True] * 120, line


def test_curves_that_coincide_take_turns():
    placed = turns([(X, Y), (X + 1, Y - 0.2), (X, Y + 0.002), (X, Y - 0.003)])
    assert [(turn.place, turn.of) for turn in placed] == [
        (0, 3),
        (0, 1),
        (1, 3),
        (2, 3),
    ]
    alone, line = drawn(placed[1], LOOKS[0])
    assert all(alone) and line.get_linestyle() == "-"
    same = [drawn(placed[i], look) for i, look in zip((0, 2, 3), LOOKS, strict=True)]
    assert [sum(column) for column in zip(*(s for s, _ in same), strict=True)] == [
        1
    ] * 120
    marked = [line.get_markevery() for _, line in same]
    assert marked == [(0, 3), (1, 3), (2, 3)]  # points 0 and 3, 1 and 4, 2


def test_curves_without_a_common_cost_or_without_points_do_not_coincide():
    nothing = np.zeros(0)
    placed = turns([(X, Y), (X + 9, Y), (nothing, nothing), (nothing, nothing)])
    assert [turn.of for turn in placed] == [1, 1, 1, 1]
    assert turns([(nothing, nothing)])[0].of == 1


def test_points_that_coincide_become_rings():
    values = [(1.0, 0.5), (2.0, 0.7), (1.001, 0.5005), (1.0, 0.6), (1.0, 0.5)]
    points = [Point(i, x, y, "") for i, (x, y) in enumerate(values)]
    assert figures._rings(points) == [0, 0, 1, 0, 2]
    assert figures._rings([]) == []
