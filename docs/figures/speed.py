"""Speed beside other simulators and by cohort, from the records of benchmarks."""

import json
from pathlib import Path

from docs.figures import card

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def rows(name: str) -> list[dict]:
    """Returns the rows of a benchmark's record."""
    return json.loads((RESULTS / f"{name}.json").read_text())["results"]


def draw_peers(path: Path) -> None:
    """Draws how many times as fast as each peer this package runs each set-up."""
    found = rows("cpu/peers")
    height = 0.24 * len(found) + 0.8
    with card.figure(path, 7.2, height, layout="constrained") as (_, ax):
        for y, row in enumerate(found):
            ratio = row["ours / peer"]
            ax.barh(y, ratio, 0.7, color=card.SENT)
            ax.text(0.04, y, f"{ratio:.2f}", va="center", fontsize=7.5, color="white")
        names = [f"{row['set-up']}, {row['peer']}" for row in found]
        ax.axvline(1, color=card.INK, lw=1)
        ax.set(yticks=range(len(found)), yticklabels=names)
        ax.set(ylim=(len(found) - 0.4, -1.6))
        ax.text(1.03, -1, "as fast", fontsize=7.5, va="center")
        ax.set_xlabel("client steps a second, as multiples of the peer's")
        ax.grid(visible=False, axis="y")
        ax.tick_params(axis="y", length=0)


def draw_clients(path: Path) -> None:
    """Draws the milliseconds of a round by the clients that take part in it."""
    found = rows("h200/cohorts")
    clients = [int(row["set-up"].removeprefix("mlp-")) for row in found]
    with card.figure(path, 5.2, 2.4, layout="constrained") as (_, ax):
        ax.loglog(clients, [row["ms a round: median"] for row in found], "o-")
        for count, row in zip(clients, found, strict=True):
            at = count, row["ms a round: median"]
            text = f"{row['steps/s: best']:,.0f} steps/s"
            away = {"textcoords": "offset points", "ha": "center", "fontsize": 7.5}
            ax.annotate(text, at, (0, -13), **away)
        ax.set(xlabel="clients in a round", ylabel="ms a round", ylim=(1, 60))
        ax.set(xlim=(0.4, 30_000))
