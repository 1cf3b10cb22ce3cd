"""Accuracy of FLASC and its rivals by traffic, from the record of their study."""

from pathlib import Path

import numpy as np

from benchmarks.adapters import published
from docs.figures import card
from sparsefl_jax.report import figure

RIVALS = {  # by the first word of a point
    "rank": (card.INK, "o"),
    "ffa": (card.QUIET, "D"),
    "pruned": (card.NEW, "s"),
    "flasc": (card.SENT, "^"),
}
ENDS = {"markevery": [-1], "markersize": 4.5, "lw": 1.2}


def draw(path: Path) -> None:
    """Draws the mean over seeds, without the points of another server optimizer."""
    entries = [e for e in published() if e["point"].split("-")[0] in RIVALS]
    with card.figure(path, 7.2, 3.6, layout="constrained") as (_, ax):
        for point in dict.fromkeys(e["point"] for e in entries):
            curves = [e["curve"] for e in entries if e["point"] == point]
            gbit, accuracy = np.mean(curves, axis=0).T
            color, mark = RIVALS[point.split("-")[0]]
            named = ENDS | {"label": point, "color": color}
            ax.plot(1000 * gbit, 100 * accuracy, mark + "-", **named)
        ax.set(xscale="log", xlabel="Mbit, both ways and all clients together")
        ax.set(ylabel="accuracy, %", ylim=(64, 84))
        figure.name_lines(ax)
