"""Builds the HTML of pages: tables that can be sorted, notes, files as links."""

import base64
import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sparsefl_jax.core.formats import MISSING
from sparsefl_jax.report.comparison.line_styles import PALETTE, Look


class Column(NamedTuple):
    """The head of a table's column."""

    title: str
    unit: str = ""
    number: bool = True


class Cell(NamedTuple):
    """A cell of a table."""

    content: str  # HTML
    value: float | None = None  # to sort by; None comes last
    muted: bool = False
    best: bool = False


def document(title: str, body: str, script: str = "") -> str:
    """Returns a whole page that needs no network.

    Args:
      title: plain text.
      body: HTML.
      script: JavaScript; '' for a page without any.
    """
    style = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
    run = f"<script>\n{script}</script>\n" if script else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{text(title)}</title>\n<style>\n{style}</style>"
        f"</head>\n<body><main>\n{body}</main>\n{run}</body></html>\n"
    )


def text(value: Any) -> str:
    """Escapes a value for HTML.

    Example:
      >>> text("<b> & 'c'")
      '&lt;b&gt; &amp; &#x27;c&#x27;'
    """
    return html.escape(str(value))


def word(value: Any) -> Cell:
    """Returns a cell of plain text, muted if there is nothing in it."""
    return Cell(text(value), muted=value == MISSING)


def table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    label: str,
    sortable: bool = False,
) -> str:
    """Formats a table in a box of its own that scrolls; '' without rows.

    Args:
      columns: the head; the first column names the rows.
      rows: cells of each row.
      label: what the table shows, for screen readers.
      sortable: whether a click on a head sorts by its column.
    """
    if not rows:
        return ""
    head = "".join(_head(column, sortable) for column in columns)
    body = "\n".join(f"<tr>{_row(columns, row)}</tr>" for row in rows)
    kind = ' class="sortable"' if sortable else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(label)}">'
        f"<table{kind}><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"
        "</div>\n"
    )


def best_of(cells: Sequence[Cell]) -> list[Cell]:
    """Marks the cells with the largest value of a column."""
    values = [cell.value for cell in cells if cell.value is not None]
    top = max(values, default=None)
    return [cell._replace(best=len(values) > 1 and cell.value == top) for cell in cells]


def note(content: str, kind: str = "note") -> str:
    """Returns a paragraph of plain text."""
    return f'<p class="{kind}">{text(content)}</p>\n' if content else ""


def section(title: str, *parts: str) -> str:
    """Returns a title with its content, or nothing if the content is empty."""
    content = "".join(parts)
    whole = f"<section><h2>{text(title)}</h2>\n{content}</section>\n"
    return whole if content else ""


def folded(title: str, content: str, opened: bool = False) -> str:
    """Returns content that a click on its title shows."""
    if not content:
        return ""
    state = " open" if opened else ""
    return f"<details{state}><summary>{text(title)}</summary>\n{content}</details>\n"


def footer(lines: Iterable[str]) -> str:
    """Returns the different lines of plain text as the end of a page."""
    shown = "<br>".join(map(text, filter(None, dict.fromkeys(lines))))
    return f"<footer>{shown}</footer>\n" if shown else ""


def facts(pairs: Sequence[tuple[str, str]], kind: str = "facts") -> str:
    """Returns names with their values side by side."""
    items = [f"<div><dt>{text(k)}</dt><dd>{text(v)}</dd></div>" for k, v in pairs]
    return f'<dl class="{kind}">{"".join(items)}</dl>\n' if items else ""


def rows_table(rows: Sequence[Sequence[str]], label: str, words: int = 1) -> str:
    """Formats rows of plain text, the first of which is the head; '' without others.

    Args:
      rows: a head, then the rows.
      label: what the table shows, for screen readers.
      words: how many of the first columns are words; the others are numbers.
    """
    head, *others = rows or [[]]
    columns = [Column(title, number=i >= words) for i, title in enumerate(head)]
    return table(columns, [[word(cell) for cell in row] for row in others], label)


def download(name: str, kind: str, content: str, title: str) -> str:
    """Returns a link to a file that the page itself holds."""
    data = base64.b64encode(content.encode()).decode()
    return (
        f'<a download="{text(name)}" href="data:{kind};charset=utf-8;base64,{data}">'
        f"{text(title)}</a>"
    )


def swatch(look: Look) -> str:
    """Returns a short piece of a line with its marker."""
    from matplotlib.markers import MarkerStyle

    style = MarkerStyle(look.marker)
    path: Any = style.get_path().transformed(style.get_transform())
    shapes = "".join(
        f'<polygon points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in polygon)}"/>'
        for polygon in (
            [(14 + 8 * x, 6 - 8 * y) for x, y in points]
            for points in path.to_polygons(closed_only=False)
        )
    )
    color = f"var(--line-{PALETTE.index(look.color)})"
    dashes = " ".join(f"{d:g}" for d in look.dashes if d is not None)
    dashes = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        '<svg class="swatch" viewBox="0 0 28 12" width="28" height="12"'
        f' aria-hidden="true" style="color: {color}"><path d="M0 6H28"{dashes}/>'
        f"{shapes}</svg>"
    )


def _head(column: Column, sortable: bool) -> str:
    name = text(column.title)
    name += f" <small>{text(column.unit)}</small>" if column.unit else ""
    kind = "" if column.number else ' class="text"'
    if not sortable:
        return f'<th scope="col"{kind}>{name}</th>'
    button = f'<button type="button">{name}</button>'
    return f'<th scope="col" aria-sort="none"{kind}>{button}</th>'


def _row(columns: Sequence[Column], row: Sequence[Cell]) -> str:
    cells = []
    for i, (column, cell) in enumerate(zip(columns, row, strict=True)):
        names = {"text": not column.number, "muted": cell.muted, "best": cell.best}
        kinds = " ".join(name for name, holds in names.items() if holds)
        kind = f' class="{kinds}"' if kinds else ""
        value = "" if cell.value is None else f' data-value="{cell.value:.12g}"'
        tag, scope = ("td", "") if i else ("th", ' scope="row"')
        cells.append(f"<{tag}{scope}{kind}{value}>{cell.content}</{tag}>")
    return "".join(cells)
