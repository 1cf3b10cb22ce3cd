"""Accuracy of adapters of a text network by traffic, from the record of their study."""

from pathlib import Path

import numpy as np

from benchmarks import text
from docs.figures import card
from sparsefl_jax.report import figure

LOOKS = {  # the color, the mark at the end, and the line
    "rank-16": (card.INK, "o", "-"),
    "rank-2": (card.INK, "s", "--"),
    "rank-1": (card.INK, "D", ":"),
    "rank-16-8bit": (card.QUIET, "o", "-"),
    "ffa-16": (card.QUIET, "s", "--"),
    "flasc-0.25": (card.SENT, "^", "-"),
    "flasc-0.0625": (card.SENT, "v", "--"),
    "topk-0.0625": (card.NEW, "s", "-"),
}


def draw(path: Path) -> None:
    """Draws the mean over the study's seeds of the accuracy by bits so far."""
    entries = text.published()["study"]
    with card.figure(path, 7.2, 3.9, layout="constrained") as (_, ax):
        for point, (color, mark, line) in LOOKS.items():
            curves = [
                text.evals(e)[["gbit", "accuracy"]].iloc[1:]
                for e in entries
                if e["point"] == point
            ]
            gbit, accuracy = np.mean(curves, axis=0).T
            named = {"label": point, "color": color, "markevery": [-1], "lw": 1.3}
            ax.plot(1000 * gbit, 100 * accuracy, mark + line, markersize=4.5, **named)
        ax.set(xscale="log", xlabel="Mbit, both ways and all clients together")
        ax.set_xticks([30, 100, 300, 1000, 3000], [30, 100, 300, 1000, 3000])
        ax.minorticks_off()
        ax.set(ylabel="accuracy, %")
        figure.name_lines(ax)
