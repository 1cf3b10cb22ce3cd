"""Writes figures as SVG: files for papers, and text that follows a page's colours."""

import html
import io
import re
from pathlib import Path
from typing import Any

from sparsefl_jax.report.comparison import Comparison
from sparsefl_jax.report.comparison_figures import DOMINATED, Figure, draw_legend
from sparsefl_jax.report.looks import PALETTE
from sparsefl_jax.system.files import write_text

_INK, _GRID = "#1b1f23", "#d9dee3"
_STYLE = {
    "font.size": 9.5,
    "font.family": "sans-serif",
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.7,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "lines.linewidth": 1.7,
    "lines.markersize": 5,
    "svg.fonttype": "none",
    "svg.hashsalt": "sparsefl_jax",  # equal comparisons give equal files
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}
SIZE = (4.9, 3.3)  # inches
_FILE_SIZE = (4.9, 4.2)  # with its legend


def write_svg(folder: Path, figure: Figure, comparison: Comparison) -> Path:
    """Writes a figure with its legend as an SVG file.

    Args:
      folder: where the file goes.
      figure: what to draw.
      comparison: of the figure, for the legend.

    Returns:
      The file written.
    """
    path = folder / f"{figure.name}.svg"
    text = _draw(figure, _FILE_SIZE, comparison)
    write_text(path, re.sub(r' id="tip:[^"]*"', "", text))
    return path


def inline(figure: Figure) -> str:
    """Returns a figure without a legend as an `<svg>` element for a page.

    Colours become the page's variables `--line-0` to `--line-6`, `--grid`, `--faint`
    and `currentColor`. Fonts are the page's. Lines and points have tooltips.
    """
    text = _draw(figure, SIZE)
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    colors = {color: f"var(--line-{i})" for i, color in enumerate(PALETTE)}
    colors |= {_INK: "currentColor", _GRID: "var(--grid)", DOMINATED: "var(--faint)"}
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
    prefix = f"{figure.name}-"
    text = re.sub(r' id="', f' id="{prefix}', text)
    text = re.sub(r'(url\(|href=")#', rf"\1#{prefix}", text)
    label = html.escape(f"{figure.title}. {figure.caption}", quote=True)
    view = re.search(r'viewBox="[^"]*"', text)[0]
    head = f'<svg role="img" aria-label="{label}" {view}>'
    return head + text[text.index(">") + 1 :]


def _draw(figure: Figure, size: tuple, comparison: Comparison | None = None) -> str:
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context(_STYLE):
        canvas: Any = Canvas(figsize=size, layout="constrained")
        canvas.get_layout_engine().set(w_pad=0.06, h_pad=0.06)
        figure.draw(canvas.subplots())
        if comparison is not None:
            draw_legend(canvas, comparison)
        out = io.StringIO()
        canvas.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    return out.getvalue()
