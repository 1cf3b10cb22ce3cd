"""Writes a run's page, `report.html`, which needs no network and no script."""

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparsefl_jax.core.formats import MISSING, format_percent, format_si
from sparsefl_jax.report.charge import RULES, assumptions, charge_rows, packet_rows
from sparsefl_jax.report.load import Run, read_run
from sparsefl_jax.report.table import (
    accuracy_notes,
    accuracy_rows,
    communication_rows,
    computation_rows,
    duration,
    heading,
    made_with,
)
from sparsefl_jax.system.files import write_text

_PLOTS = {
    "accuracy_by_round": "Test accuracy, pooled or clients' mean, by evaluated round.",
    "accuracy_by_gbit": "Test accuracy over the bits sent and received by all clients.",
    "size_by_round": "Test accuracy, and the alive parameters of the model.",
    "density_by_round": "Share of alive weights in the deployed model's kernels.",
    "mismatch_by_round": "1 - Jaccard index of the masks of this and the last round.",
    "mask_mismatch": "1 - Jaccard index of the server's masks of every two rounds.",
    "client_mismatch": "1 - Jaccard index of the masks that two clients sent.",
    "client_mismatch_by_layer": "Mean client mask mismatch over pairs, by layer.",
    "thresholds_by_round": "Thresholds of the server's filters, mean and largest.",
    "filter_activity": "Share of clients that keep a filter, by layer.",
    "client_filters": "Filters that each client keeps (black): first, halfway, last.",
    "client_layer_density": "Share of each layer's filters that a client keeps.",
    "partition_by_client": "Training samples of every client, by class.",
}

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2733; background: #fff;
       max-width: 1120px; margin: 2.5em auto; padding: 0 1.5em; }
h1 { font-size: 1.7em; margin: 0; } h2 { font-size: 1.15em; margin: 2.2em 0 .6em; }
p { max-width: 75ch; } .note { color: #5a6673; margin: .2em 0; }
.figures { display: flex; flex-wrap: wrap; gap: .6em 2em; margin: 1.4em 0; }
.figures div { color: #5a6673; } .figures b { display: block; font-size: 1.45em;
       color: #1d2733; font-weight: 600; }
.scroll { overflow-x: auto; margin: .8em 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25em .9em; text-align: right; white-space: nowrap;
       border-bottom: 1px solid #e3e7eb; }
th { font-weight: 600; border-bottom-color: #9aa5b1; }
th.text, td.text { text-align: left; padding-left: 0; }
.plots { display: grid; gap: 1.4em; align-items: start;
       grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); }
figure { margin: 0; } figure img { width: 100%; height: auto; }
figcaption { color: #5a6673; font-size: .92em; }
.config { columns: 3 300px; font: 13px/1.6 ui-monospace, monospace; }
.config div { break-inside: avoid; overflow-wrap: anywhere; }
.config b { font-weight: 600; } .config span { color: #5a6673; }
"""


def write_page(run_dir: str | Path) -> Path:
    """Writes `report.html` into a run's folder: plots, tables, configuration.

    The page shows the plots that `plot_run` has drawn. For a run that has not ended, it
    shows the results so far.

    Args:
      run_dir: the folder of a run, see `read_run`.

    Returns:
      The page written.

    Raises:
      ValueError: the folder cannot be read, see `read_run`.

    Example:
      >>> write_page("no/such/run")
      Traceback (most recent call last):
      ValueError: run_dir='no/such/run' expected a folder with metrics.jsonl.
    """
    run = read_run(run_dir)
    name = heading(run.summary) or run.path.resolve().name
    stages = run.summary.get("stages", [])
    body = [
        f"<h1>{_text(run.path.resolve().name)}</h1>",
        _note(
            heading(run.summary) or "This run has not ended; these are results so far."
        ),
        *(
            _note(f"The totals leave out lost records: {x}.")
            for x in run.summary.get("lost", ())
        ),
        _figures(run),
        _section("Plots", _plots(run)),
        _section(
            "Accuracy",
            _table(accuracy_rows(run.summary)),
            *map(_note, accuracy_notes(run.summary)),
        ),
        _section("Stages", _table(_stage_rows(stages), text=1)),
        _section(
            "What was charged",
            f"<p>{_text(RULES)}</p>",
            *(f"<p>{_text(line)}</p>" for line in assumptions(run)),
            _table(charge_rows(run), text=2),
            _table(packet_rows(run), text=3),
        ),
        _section("Configuration", _configuration(run.config)),
        _section("Made with", _note(made_with(run.summary))),
    ]
    path = run.path / "report.html"
    write_text(
        path,
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(name)}</title><style>{_STYLE}</style></head>\n"
        f"<body>\n{''.join(body)}</body></html>\n",
    )
    return path


def _text(value: Any) -> str:
    return html.escape(str(value))


def _note(text: str) -> str:
    return f'<p class="note">{_text(text)}</p>\n' if text else ""


def _section(title: str, *parts: str) -> str:
    """Returns a title and its content, or nothing if the content is empty."""
    content = "".join(parts)
    return f"<h2>{_text(title)}</h2>\n{content}\n" if content else ""


def _table(rows: Sequence[Sequence[str]], text: int = 1) -> str:
    """Formats a table whose first `text` columns are words and others numbers."""
    if len(rows) < 2:
        return ""

    def line(row, tag):
        cells = [
            f"<{tag}{' class=text' if i < text else ''}>{_text(cell)}</{tag}>"
            for i, cell in enumerate(row)
        ]
        return f"<tr>{''.join(cells)}</tr>\n"

    lines = [line(rows[0], "th"), *(line(row, "td") for row in rows[1:])]
    return f'<div class="scroll"><table>\n{"".join(lines)}</table></div>\n'


def _stage_rows(stages: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Joins traffic and training FLOPs of the stages into one table."""
    traffic, work = communication_rows(stages), computation_rows(stages)
    rows = [a + b[2:] for a, b in zip(traffic, work, strict=True)]
    if rows:
        rows[0][0] = "stage"
        rows[0][-3:] = [f"FLOPs, {kind}" for kind in rows[0][-3:]]
    return rows


def _figures(run: Run) -> str:
    """Formats the main results."""
    stages = run.summary.get("stages", [])
    last = run.evals[-1] if run.evals else {}
    model = next(iter(last.get("models", {}).values()), {})
    gbit = max((r["gbit_cumulative"] for r in run.train), default=None)
    flops, dense = (sum(s[k] for s in stages) for k in ("flops", "flops_dense"))
    clients = last.get("client_accuracy") or {}
    figures = {
        "accuracy, final": format_percent(last.get("accuracy")),
        "10th percentile of clients": format_percent(clients.get("p10")),
        "median of clients": format_percent(clients.get("median")),
        "density": format_percent(model.get("density")),
        "traffic, both ways": format_si(None if gbit is None else 1e9 * gbit, "bit"),
        "training FLOPs / dense": f"{flops / dense:.3g}" if dense else MISSING,
        "time": duration({"seconds": run.summary.get("seconds")}),
    }
    shown = [f"<div><b>{_text(v)}</b>{_text(k)}</div>" for k, v in figures.items()]
    return f'<div class="figures">{"".join(shown)}</div>\n'


def _plots(run: Run) -> str:
    figures = []
    for name, caption in _PLOTS.items():
        path = run.path / "plots" / f"{name}.png"
        if path.is_file():
            data = base64.b64encode(path.read_bytes()).decode()
            figures.append(
                f'<figure><img alt="{_text(caption)}"'
                f' src="data:image/png;base64,{data}">'
                f"<figcaption>{_text(caption)}</figcaption></figure>\n"
            )
    return f'<div class="plots">{"".join(figures)}</div>\n' if figures else ""


def _configuration(config: Mapping[str, Any]) -> str:
    """Lists every field by its name on the command line."""
    lines = [
        f"<div><b>{_text(name)}</b> <span>{_text(value)}</span></div>"
        for name, value in _flat(config)
    ]
    return f'<div class="config">{"".join(lines)}</div>\n' if lines else ""


def _flat(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    fields = []
    for name, value in config.items():
        if isinstance(value, Mapping):
            fields += _flat(value, f"{prefix}{name}.")
        else:
            fields.append((prefix + name, MISSING if value is None else str(value)))
    return fields
