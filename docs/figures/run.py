"""What a run is made of: stages, segments, rounds, and chunks of clients."""

from pathlib import Path

from matplotlib.patches import Polygon, Rectangle

from docs.figures import card

STAGES = {"first stage": (2,), "second stage": (4, 4)}  # rounds of their segments
CHUNKS, PER_CHUNK = 3, 2
LEFT, STEP, GAP, HIGH = 62, 37, 10, 18


def draw(path: Path) -> None:
    """Draws two stages down to rounds, and one round down to its clients."""
    with card.canvas(path, 470, 172) as ax:
        for i, name in enumerate(("stage", "segment", "round")):
            _name(ax, 12 + 26 * i, name)
        x = LEFT
        for title, segments in STAGES.items():
            begin, done = x, 0
            for rounds in segments:
                width = STEP * rounds
                _bar(ax, x, 38, width, f"{rounds} rounds")
                for i in range(rounds):
                    number = f"{done + i + 1}"
                    _bar(ax, x + STEP * i + 2, 64, STEP - 4, number, card.ZERO)
                _draw_stop(ax, x + width + GAP / 2, 47)
                x, done = x + width + GAP, done + rounds
            _bar(ax, begin, 12, x - GAP - begin, title)
        _draw_stop(ax, LEFT + 3, 158)
        note = "here the run can be evaluated, saved and stopped"
        ax.text(LEFT + 11, 158, note, fontsize=7.5, va="center", color=card.QUIET)
        _draw_cohort(ax, LEFT + 3 * STEP + GAP, x - GAP)  # the second stage's round 2


def _name(ax, y: float, name: str) -> None:
    ax.text(8, y + HIGH / 2, name, fontsize=8.5, weight="bold", va="center")


def _bar(ax, x: float, y: float, width: float, text: str, color=card.ALIVE) -> None:
    """Draws a box with a text in it."""
    ax.add_patch(Rectangle((x, y), width, HIGH, facecolor=color, edgecolor=card.INK))
    at = (x + width / 2, y + HIGH / 2)
    ax.text(*at, text, fontsize=7.5, ha="center", va="center")


def _draw_stop(ax, x: float, y: float) -> None:
    ax.plot(x, y, "d", color=card.NEW, markersize=4.5)


def _draw_cohort(ax, opened: float, end: float) -> None:
    """Draws the cohort of the round at `opened`, a chunk at a time, and their sum."""
    top, width = 110, 76
    corners = [(opened + 2, 82), (opened + STEP - 2, 82), (end, top), (LEFT, top)]
    ax.add_patch(Polygon(corners, facecolor=card.ZERO, alpha=0.35, edgecolor="none"))
    _name(ax, top + 4, "chunk")
    ax.add_patch(Rectangle((LEFT, top), end - LEFT, 28, facecolor=card.ZERO, alpha=0.6))
    for i in range(CHUNKS):
        x = LEFT + 6 + i * (width + 16)
        clients = " and ".join(f"{PER_CHUNK * i + j + 1}" for j in range(PER_CHUNK))
        _bar(ax, x, top + 5, width, f"clients {clients}", card.DEAD)
        _arrow(ax, x + width, top + 14, x + width + 15)
    x = LEFT + 6 + CHUNKS * (width + 16)
    _bar(ax, x, top + 5, end - 6 - x, "aggregate the sum", card.DEAD)


def _arrow(ax, x: float, y: float, to: float) -> None:
    style = {"arrowstyle": "-|>", "color": card.INK, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", (to, y), (x, y), arrowprops=style)
