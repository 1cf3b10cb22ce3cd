"""A list of questions that leads to a few methods."""

from pathlib import Path

from docs.figures import card

QUESTIONS = (  # and the answers to a yes
    ("Are clients unequal?", "heterofl, fiarse, hetero_jmwst"),
    ("A model for each client?", "spafl, fedspa"),
    ("Does only the uplink cost?", "compressed, fedbat"),
    ("May the network stay dense?", "quantized, small fedavg"),
    ("Must the mask follow training?", "feddst, jmwst"),
)
OTHERWISE = "pdst, spdst"
WIDTH, STEP, BOX = 410, 52, 30


def draw(path: Path) -> None:
    """Draws the questions from the top, each with its answers to the right."""
    left, right, across = 10, 244, (190, 156)
    with card.canvas(path, WIDTH, STEP * (len(QUESTIONS) + 1) - 6) as ax:
        for row, (question, methods) in enumerate(QUESTIONS):
            top = 10 + STEP * row
            box(ax, left, top, across[0], question, card.ALIVE)
            box(ax, right, top, across[1], methods, card.ZERO)
            middle, end = top + BOX / 2, left + across[0]
            arrow(ax, (end, middle), (right, middle), "yes", (0, -6))
            down = left + across[0] / 2
            arrow(ax, (down, top + BOX), (down, top + STEP), "no", (13, 0))
        box(ax, left, 10 + STEP * len(QUESTIONS), across[0], OTHERWISE, card.ZERO)


def box(ax, left: float, top: float, width: float, text: str, color: str) -> None:
    """Draws a text on a coloured rectangle."""
    corners = [left, left + width], [top, top + BOX]
    ax.fill_between(corners[0], *corners[1], facecolor=color, edgecolor=card.EDGE)
    at = left + width / 2, top + BOX / 2
    ax.text(*at, text, ha="center", va="center", fontsize=10, color=card.INK)


def arrow(ax, start: tuple, end: tuple, text: str, aside: tuple) -> None:
    """Draws an arrow with a word beside its middle."""
    style = {"arrowstyle": "->", "color": card.QUIET, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", end, start, arrowprops=style)
    x, y = ((a + b) / 2 + d for a, b, d in zip(start, end, aside, strict=True))
    ax.text(x, y, text, ha="center", va="center", fontsize=9, color=card.QUIET)
