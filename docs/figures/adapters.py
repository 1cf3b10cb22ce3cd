"""Accuracy of FLASC and its rivals by traffic, from the record of their study."""

from pathlib import Path

import numpy as np

from benchmarks.adapters import published
from docs.figures import card

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
            ax.plot(1000 * gbit, 100 * accuracy, mark + "-", color=color, **ENDS)
            at, away = (1000 * gbit[-1], 100 * accuracy[-1]), {"xytext": (5, 0)}
            away |= {"textcoords": "offset points", "va": "center", "fontsize": 7.5}
            ax.annotate(point, at, **away)
        ax.set(xscale="log", xlabel="Mbit, both ways and all clients together")
        ax.set_ylabel("accuracy, %")
        ax.margins(x=0.12)
