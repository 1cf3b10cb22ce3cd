"""Accuracy of papers' tables, here against print, from the committed records."""

import json
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import pages
from benchmarks.v2 import outcome
from docs.figures import card

# Rows of which a seed lost a class, which says nothing of the method.
_SATURATED = json.loads((pages.ROOT / "benchmarks/tables/saturation.json").read_text())
LOST = {name for each in _SATURATED.values() if isinstance(each, dict) for name in each}
PRINTED = r"(?:^|, )(\d+\.\d+)(?: ± ([\d.]+))?"  # no density, such as .096


class Compared(NamedTuple):
    """A row of a table: accuracies in %."""

    name: str
    here: np.ndarray  # (seeds,)
    printed: float
    deviation: float  # as printed; nan without one


def compared(name: str) -> list[Compared]:
    """Returns the rows of a table that have been run and whose accuracy is printed."""
    table, found, rows = pages.declared(name), {}, []
    which = "best" if table.best else "final"
    for (row, _), entry in pages.results(name).items():
        first = next(iter(entry["accuracy"].values()))
        found.setdefault(row, []).append(100 * first[which])
    for row, here in found.items():
        figures = re.findall(PRINTED, table.rows[row].paper)
        if figures:  # of Table 9 of FLASH the second, within 2 GiB
            printed, deviation = (float(text or "nan") for text in figures[-1])
            rows.append(Compared(row, np.array(here), printed, deviation))
    return rows


def draw(paper: str, path: Path) -> None:
    """Draws a panel for each table of a paper that has results."""
    names = [name for name in pages.TABLES if name.startswith(f"{paper}_")]
    panels = {name: rows for name in names if (rows := compared(name))}
    heights = [len(rows) + 1 for rows in panels.values()]
    size = 7.2, 0.2 * sum(heights) + 0.5 * len(heights) + 0.4
    options = {"height_ratios": heights, "squeeze": False, "layout": "constrained"}
    with card.figure(path, *size, nrows=len(panels), **options) as (figure, axes):
        for ax, (name, rows) in zip(axes.flat, panels.items(), strict=True):
            for y, row in enumerate(rows):
                draw_row(ax, y, row)
            ax.set_yticks(range(len(rows)), [row.name for row in rows])
            ax.set_ylim(len(rows) - 0.4, -0.6)
            ax.set_title(name, fontsize=9, loc="left")
            ax.tick_params(axis="y", length=0, labelsize=7.5)
        axes.flat[-1].set_xlabel("accuracy, %")
        ends, names = axes.flat[0].get_legend_handles_labels()
        named = dict(zip(names, ends, strict=True))  # each once
        figure.legend(named.values(), named, loc="outside upper right", ncols=2)


def draw_row(ax, y: int, row: Compared) -> None:
    """Draws print and an interval, or each seed if they are few or one lost a class."""
    half = 0.0 if np.isnan(row.deviation) else row.deviation
    style = {"fmt": "D", "markersize": 4, "color": card.NEW, "lw": 1.2}
    ax.errorbar(row.printed, y + 0.17, xerr=half, label="print ± deviation", **style)
    label = "here ± 95 %, or each seed of one or two"
    style = {
        "fmt": "o",
        "markersize": 4.5,
        "color": card.SENT,
        "lw": 1.2,
        "label": label,
    }
    if row.name in LOST:  # seeds of which one says nothing have no mean
        style |= {"markerfacecolor": card.CARD, "label": "_"}
    if row.name in LOST or len(row.here) < 3:
        ax.errorbar(row.here, np.full(len(row.here), y - 0.17), **style)
        return
    found = outcome.difference(row.here)
    ends = [[found.mean - found.low], [found.high - found.mean]]
    ax.errorbar(found.mean, y - 0.17, xerr=ends, **style)
