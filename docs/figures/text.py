"""Accuracy of adapters of a text network by traffic, from the record of their study."""

from pathlib import Path

import numpy as np

from benchmarks import text
from docs.figures import card
from sparsefl_jax.report import figure

RIVALS = {  # by the first word of a point
    "rank": (card.INK, "o"),
    "ffa": (card.QUIET, "D"),
    "topk": (card.NEW, "s"),
    "flasc": (card.SENT, "^"),
}


def draw(path: Path) -> None:
    """Draws the mean over seeds of the accuracy by bits so far."""
    entries = text.published()["study"]
    with card.figure(path, 7.2, 3.6, layout="constrained") as (_, ax):
        for point in dict.fromkeys(e["point"] for e in entries):
            curves = [
                text.evals(e)[["gbit", "accuracy"]].iloc[1:]
                for e in entries
                if e["point"] == point
            ]
            gbit, accuracy = np.mean(curves, axis=0).T
            color, mark = RIVALS[point.split("-")[0]]
            named = {"label": point, "color": color, "markevery": [-1], "lw": 1.2}
            ax.plot(1000 * gbit, 100 * accuracy, mark + "-", markersize=4.5, **named)
        ax.set(xscale="log", xlabel="Mbit, both ways and all clients together")
        ax.set(ylabel="accuracy, %")
        figure.name_lines(ax)
