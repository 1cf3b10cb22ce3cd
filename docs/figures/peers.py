"""Speed beside other simulators, from the table of the performance page."""

from pathlib import Path

from docs.figures import card

PAGE = Path(__file__).parents[1] / "performance.md"
COLUMN, OTHER = "ours / peer", "on EPYC"


def table(text: str) -> list[dict[str, str]]:
    """Returns the rows of the page's table that has `COLUMN`, by heading."""
    cells = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()
    ]
    start = next(i for i, line in enumerate(cells) if COLUMN in line)
    rows = []
    for line in cells[start + 2 :]:
        if not line:
            break
        rows.append(dict(zip(cells[start], line, strict=True)))
    return rows


def draw(path: Path) -> None:
    """Draws how many times as fast as each peer this package runs each set-up."""
    rows = table(PAGE.read_text())
    with card.figure(path, 7.2, 0.24 * len(rows) + 0.8, layout="constrained") as (
        _,
        ax,
    ):
        for y, row in enumerate(rows):
            ratio, other = float(row[COLUMN]), float(row[OTHER])
            ax.barh(y, ratio, 0.7, color=card.SENT)
            ax.plot(other, y, "D", color=card.NEW, markersize=4.5)
            ax.text(0.04, y, f"{ratio:.2f}", va="center", fontsize=7.5, color="white")
            if not y:
                away = {"textcoords": "offset points", "va": "center", "fontsize": 7.5}
                ax.annotate("EPYC", (other, y), (6, 0), **away)
                ax.annotate("Xeon", (ratio, y), (-4, 0), ha="right", **away)
        names = [f"{row['set-up']}, {row['peer']}" for row in rows]
        ax.axvline(1, color=card.INK, lw=1)
        ax.set(yticks=range(len(rows)), yticklabels=names, ylim=(len(rows) - 0.4, -1.6))
        ax.text(1.03, -1, "as fast", fontsize=7.5, va="center")
        ax.set_xlabel("client steps a second, as multiples of the peer's")
        ax.grid(visible=False, axis="y")
        ax.tick_params(axis="y", length=0)
