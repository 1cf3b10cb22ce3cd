"""Writes figures as SVG: files for papers, and text that follows a page's colours."""

import html
import io
import re
from collections.abc import Callable
from typing import Any

from sparsefl_jax.report.comparison.figures import Figure, legend_text
from sparsefl_jax.report.comparison.line_styles import PALETTE, looks
from sparsefl_jax.report.comparison.measures import Comparison
from sparsefl_jax.report.figure import FAINT, GRID, INK, SIZE, STYLE

_LEGEND = {"legend.handlelength": 3.0}
_MARGINS = {"left": 0.115, "right": 0.955, "bottom": 0.145, "top": 0.98}


def draw(figure: Figure) -> str:
    """Returns a figure without a legend as SVG, with tooltips in ids, see `tip`."""

    def fill(canvas) -> None:
        canvas.subplots_adjust(**_MARGINS)
        figure.draw(canvas.subplots())

    return _draw(fill, SIZE)


def draw_legend(comparison: Comparison) -> str:
    """Returns the legend of all figures of a comparison as SVG."""
    labels = [legend_text(e).replace("$", r"\$") for e in comparison.entries]
    columns = 1 if max(map(len, labels)) > 27 else 2
    rows = -(-len(labels) // columns)
    styles = looks([entry.group for entry in comparison.entries])

    def fill(canvas) -> None:
        from matplotlib.lines import Line2D

        handles = [
            Line2D([], [], color=s.color, linestyle=s.linestyle, marker=s.marker, ms=5)
            for s in styles
        ]
        place = {"loc": "center left", "bbox_to_anchor": (0.09, 0.5)}
        canvas.legend(handles, labels, ncols=columns, **place)

    return _draw(fill, (SIZE[0], 0.12 + 0.18 * rows))


def stacked(top: str, bottom: str) -> str:
    """Returns two SVG texts of one width above each other, without tooltips."""
    heights = [
        float(re.search(r'viewBox="0 0 \S+ (\S+)"', s)[1]) for s in (top, bottom)
    ]
    total = f"{sum(heights):g}"
    head = re.sub(r'height="[^"]*"', f'height="{total}pt"', top, count=1)
    head = re.sub(r'viewBox="0 0 (\S+) \S+"', rf'viewBox="0 0 \1 {total}"', head)
    inner = bottom[bottom.index("<svg") : bottom.rindex("</svg>")]
    below = _prefixed(inner[inner.index(">") + 1 :], "legend-")
    body = head[: head.rindex("</svg>")]
    shift = f'<g transform="translate(0 {heights[0]:g})">'
    return re.sub(r' id="tip:[^"]*"', "", f"{body}{shift}{below}</g>\n</svg>\n")


def framed(name: str, title: str, caption: str, drawn: str) -> str:
    """Returns a figure with its title and its caption for a page.

    Args:
      name: unique on the page.
      title: plain text, as is the caption.
      caption: says what is drawn, in one or two sentences.
      drawn: an SVG file's text.
    """
    shown = inline(name, f"{title}. {caption}", drawn)
    return (
        f"<figure><h3>{html.escape(title)}</h3>{shown}"
        f"<figcaption>{html.escape(caption)}</figcaption></figure>\n"
    )


def inline(name: str, label: str, text: str) -> str:
    """Returns an SVG file's text as an `<svg>` element for a page.

    Colours become the page's variables `--line-0` to `--line-6`, `--grid`, `--faint`
    and `currentColor`. Fonts are the page's. Lines and points have tooltips.

    Args:
      name: unique on the page; ids begin with it.
      label: what the figure shows, for screen readers.
      text: as `draw` or `figure.canvas` wrote it.
    """
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    colors = {color: f"var(--line-{i})" for i, color in enumerate(PALETTE)}
    colors |= {INK: "currentColor", GRID: "var(--grid)", FAINT: "var(--faint)"}
    for color, variable in colors.items():
        text = text.replace(color, variable)
    text = re.sub(r" font-family: [^;]*;", "", text)
    text = re.sub(r"<style.*?</style>", "", text, flags=re.S)
    text = re.sub(r'<g id="tip:[^:"]*:([^"]*)">', r"<g><title>\1</title>", text)
    text = re.sub(
        r'(<g|<path|<defs|<clipPath)( id="(?:figure|patch|axes|line2d|text|'
        r'matplotlib\.axis|xtick|ytick|FillBetween\w*)_?\d*")',
        r"\1",
        text,
    )
    text = _prefixed(text, f"{name}-")
    label = html.escape(label, quote=True)
    view = re.search(r'viewBox="[^"]*"', text)[0]
    head = f'<svg role="img" aria-label="{label}" {view}>'
    return head + text[text.index(">") + 1 :]


def _prefixed(text: str, prefix: str) -> str:
    """Adds a prefix to all ids, so that several SVG texts can share a document."""
    text = text.replace(' id="', f' id="{prefix}')
    return re.sub(r'(url\(|href=")#', rf"\1#{prefix}", text)


def _draw(fill: Callable[[Any], None], size: tuple[float, float]) -> str:
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context(STYLE | _LEGEND):
        canvas = Canvas(figsize=size)
        fill(canvas)
        out = io.StringIO()
        canvas.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    return out.getvalue()
