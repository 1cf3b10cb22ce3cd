"""The look of all pictures: ink on a light card, readable on a dark page too."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt  # noqa: E402

CARD, INK, QUIET, EDGE = "#fafbfc", "#1b1f23", "#57606a", "#c3cad2"
# They differ in lightness (100, 86, 62, 30), so they survive a gray printer, and in
# blue against brown, which colour-blind readers can distinguish.
DEAD, ALIVE, SENT, NEW = "#ffffff", "#cfd8e3", "#4f9bd9", "#8a2c05"
ZERO = "#a9d0f0"


@contextmanager
def figure(path: Path, width: float, height: float, **options) -> Iterator[tuple]:
    """Yields `(figure, axes)` of `width` by `height` inches and writes them to `path`.

    The file depends on nothing but what is drawn: no date, no version, no random ids.
    """
    with plt.style.context("sparsefl_jax.report.style"):
        fig, axes = plt.subplots(figsize=(width, height), **options)
        yield fig, axes
        anonymous = {"Date": None, "Creator": None}
        fig.savefig(path, facecolor=CARD, metadata=anonymous)
        plt.close(fig)


@contextmanager
def canvas(path: Path, width: float, height: float) -> Iterator:
    """Yields axes that fill a card of `width` by `height` points, from the top left."""
    with figure(path, width / 72, height / 72) as (_, ax):
        ax.set_position((0, 0, 1, 1))
        ax.set(xlim=(0, width), ylim=(height, 0))
        ax.axis("off")
        yield ax


def squares(ax, cells: list[tuple[float, float, str]], size: float, **style) -> None:
    """Draws squares `(x, y, colour)` by their top left corners, a colour at a time."""
    style = {"markeredgecolor": EDGE, "markeredgewidth": 0.4} | style
    for color in sorted({color for *_, color in cells}):
        at = [(x + size / 2, y + size / 2) for x, y, own in cells if own == color]
        ax.plot(
            *zip(*at, strict=True),
            "s",
            markersize=size - 0.9,
            color=color,
            **style,
        )


def key(ax, x: float, y: float, entries: dict[str, str], gap: float = 14) -> None:
    """Draws a row of squares, each named beside it; `entries` are colours by name."""
    for name, color in entries.items():
        squares(ax, [(x, y - 4, color)], 7)
        ax.text(x + 10, y, name, va="center", fontsize=7.5, color=QUIET)
        x += 10 + 3.9 * len(name) + gap
