"""Writes figures as SVG: files for papers, and text that follows a page's colours."""

import html
import io
import re

from sparsefl_jax.report.comparison.figures import Figure
from sparsefl_jax.report.comparison.line_styles import PALETTE, looks
from sparsefl_jax.report.comparison.measures import Comparison
from sparsefl_jax.report.figure import FAINT, GRID, INK, SIZE, STYLE


def draw(figure: Figure, comparison: Comparison) -> str:
    """Returns a figure with its legend as SVG, with tooltips in ids, see `tip`."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas
    from matplotlib.lines import Line2D

    labels = [
        (f"{e.label} other {e.unlike}" if e.unlike else e.label).replace("$", r"\$")
        for e in comparison.entries
    ]
    handles = [
        Line2D([], [], color=s.color, linestyle=s.linestyle, marker=s.marker, ms=5)
        for s in looks([entry.group for entry in comparison.entries])
    ]
    columns = 1 if max(map(len, labels)) > 27 else 2
    below = 0.12 + 0.18 * -(-len(labels) // columns)  # inches
    width, height = SIZE[0], SIZE[1] + below
    # Fixed margins: matplotlib's own layout takes twice as long as all the drawing.
    bottom, top = ((share * SIZE[1] + below) / height for share in (0.145, 0.98))
    with matplotlib.rc_context(STYLE):
        canvas = Canvas(figsize=(width, height))
        canvas.subplots_adjust(left=0.115, right=0.955, bottom=bottom, top=top)
        figure.draw(canvas.subplots())
        canvas.legend(
            handles,
            labels,
            ncols=columns,
            loc="lower left",
            bbox_to_anchor=(0.09, 0.0),
            handlelength=3.0,
        )
        out = io.StringIO()
        canvas.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    return out.getvalue()


def without_tips(drawn: str) -> str:
    """Returns an SVG text for a file, where ids cannot be tooltips."""
    return re.sub(r' id="tip:[^"]*"', "", drawn)


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
    # So that several SVG texts can share a document.
    text = text.replace(' id="', f' id="{name}-')
    text = re.sub(r'(url\(|href=")#', rf"\1#{name}-", text)
    view = re.search(r'viewBox="[^"]*"', text)[0]
    head = f'<svg role="img" aria-label="{html.escape(label)}" {view}>'
    return head + text[text.index(">") + 1 :]
