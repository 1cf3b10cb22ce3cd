"""Writes a run's page, `report.html`, which needs no network and no script."""

import re
from pathlib import Path

from sparsefl_jax.core.flatten import flatten
from sparsefl_jax.core.formats import MISSING, format_percent, format_seconds, format_si
from sparsefl_jax.data import partition_statistics, statistics_rows
from sparsefl_jax.report.charge import RULES, assumptions, charge_rows, packet_rows
from sparsefl_jax.report.comparison.costs import pilot_note, total
from sparsefl_jax.report.comparison.evaluations import (
    accuracy,
    best_eval,
    chosen_by,
    final_evals,
    last_eval,
)
from sparsefl_jax.report.density import density_notes, density_rows
from sparsefl_jax.report.load import Run, read_run
from sparsefl_jax.report.markup import (
    document,
    facts,
    folded,
    footer,
    note,
    rows_table,
    section,
    text,
)
from sparsefl_jax.report.svg import framed
from sparsefl_jax.report.table import (
    BITS,
    FLOPS,
    WHOSE,
    accuracy_rows,
    duration,
    heading,
    made_with,
    stage_rows,
)
from sparsefl_jax.report.tiers import closing_rule, tier_rows, totals, unheard
from sparsefl_jax.report.unchanged import sentences
from sparsefl_jax.system.files import read_text, write_text

_PLOTS = {  # section: {name of the file: (title, caption)}
    "Accuracy and loss": {
        "accuracy_by_round": (
            "Accuracy by round",
            "Of every deployed model on test samples. The ring marks the best of all"
            " evaluations of the headline model.",
        ),
        "loss_by_round": (
            "Loss by round",
            "Mean over the samples of the local training, and over test samples.",
        ),
        "accuracy_by_gbit": (
            "Accuracy by traffic",
            "Over the bits sent and received by all clients since the first stage.",
        ),
        "size_by_round": (
            "Accuracy and size",
            "Accuracy of the headline model, and its parameters that are alive.",
        ),
    },
    "Density and masks": {
        "density_by_round": (
            "Density by round",
            "Share of the kernels' weights that are alive, as in the table.",
        ),
        "mismatch_by_round": (
            "Change of the mask by round",
            "1 - Jaccard index of the deployed masks of this round and the one before.",
        ),
        "mask_mismatch": (
            "Masks of every two rounds",
            "1 - Jaccard index of the server's masks after two rounds.",
        ),
        "client_mismatch": (
            "Masks of every two clients",
            "1 - Jaccard index of the masks that two clients of a round sent.",
        ),
        "client_mismatch_by_layer": (
            "Masks of two clients by layer",
            "Mean of 1 - Jaccard index over all pairs of clients of a round.",
        ),
    },
    "Filters": {
        "thresholds_by_round": (
            "Thresholds by round",
            "Thresholds of the server's filters, mean and largest of each layer.",
        ),
        "filter_activity": (
            "Active filters by round",
            "Share of clients that keep each filter, by layer.",
        ),
        "client_filters": (
            "Active filters by client",
            "Filters that each client keeps are blue: first, halfway, last round.",
        ),
        "client_layer_density": (
            "Filters kept by client and layer",
            "Share of each layer's filters that a client keeps after the last round.",
        ),
    },
    "Partition": {
        "partition_by_client": (
            "Samples by client",
            "Training samples of every client, by class.",
        )
    },
}


def write_page(run_dir: str | Path) -> Path:
    """Writes `report.html` into a run's folder: plots, tables, configuration.

    The page shows the plots that `plot_run` has drawn. For a run that has not ended, it
    shows the results so far. Rounds are counted over all stages.

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
    name = run.path.resolve().name
    fields = [
        (field, MISSING if value is None else str(value))
        for field, value in flatten(run.config).items()
    ]
    silent = unheard(run.train)
    late = f"Rounds in which no uplink came in time: {silent}." if silent else ""
    split = run.partition  # none in older runs
    statistics = [] if split is None else statistics_rows(partition_statistics(split))
    body = [
        _header(run, name),
        section(
            "Accuracy and loss",
            *map(note, _accuracy_notes(run)),
            rows_table(  # densities are in a table of their own
                [row[:-1] for row in accuracy_rows(run.summary)],
                "Accuracy of the deployed models",
            ),
            _figures(run, "Accuracy and loss"),
        ),
        section(
            "Density and masks",
            *map(note, density_notes(run)),
            rows_table(density_rows(run), "Density asked for and reached"),
            _figures(run, "Density and masks"),
            *map(note, sentences(run)),
        ),
        section(
            "Guarantee", note(run.summary.get("guarantee", {}).get("statement", ""))
        ),
        section("Filters", _figures(run, "Filters")),
        section(
            "Devices",
            note(closing_rule(run.config)),
            note(late, "warn"),
            rows_table(tier_rows(totals(run.train, final_evals(run))), "Tiers"),
        ),
        section("Partition", facts(statistics), _figures(run, "Partition")),
        section("Stages", rows_table(_stage_rows(run), "Costs of each stage")),
        section(
            "What was charged",
            f"<p>{text(RULES)}</p>\n",
            *(note(line, "assumed") for line in assumptions(run)),
            rows_table(charge_rows(run), "Bits charged", words=2),
            folded(
                "Values sent, by packet",
                rows_table(packet_rows(run), "Values sent", words=3),
            ),
        ),
        section(
            "Configuration",
            folded(f"All {len(fields)} fields", facts(fields, "config"), opened=True),
        ),
        footer([made_with(run.summary)]),
    ]
    path = run.path / "report.html"
    write_text(path, document(heading(run.summary) or name, "".join(body)))
    return path


def _header(run: Run, name: str) -> str:
    lost = [
        f"The totals leave out lost records: {x}." for x in run.summary.get("lost", ())
    ]
    running = "" if run.summary else "This run has not ended; these are results so far."
    return (
        f"<header><h1>{text(name)}</h1>\n"
        + note(heading(run.summary).replace(", ", " · "), "lede")
        + "".join(note(line, "warn") for line in [running, *lost] if line)
        + note(pilot_note(run))
        + facts(_key_facts(run), "key")
        + "</header>\n"
    )


def _key_facts(run: Run) -> list[tuple[str, str]]:
    """Returns the main results with their names."""
    stages = run.summary.get("stages", [])
    last, best = last_eval(run), best_eval(run)
    when = f", round {run.rounds_until(best['stage'], best['round'])}" if best else ""
    model = next(iter(last["models"].values()), {})
    gbit = max((r["gbit_cumulative"] for r in run.train), default=None)
    flops, dense = (sum(s[k] for s in stages) for k in ("flops", "flops_dense"))
    clients, hours = last.get("client_accuracy", {}), total(run, "hours")
    found = {
        "accuracy, last round": format_percent(accuracy(last)),
        f"best{when}": format_percent(best and accuracy(best)),
        "clients, p10": format_percent(clients.get("p10")),
        "clients, median": format_percent(clients.get("median")),
        "density, all parameters": format_percent(model.get("density")),
        "traffic, both ways": format_si(None if gbit is None else 1e9 * gbit, "bit"),
        "FLOPs / dense": f"{flops / dense:.3g}" if dense else MISSING,
        "virtual time": format_seconds(None if hours is None else 3600 * hours),
        "time": duration({"seconds": run.summary.get("seconds")}),
    }
    return [(name, value) for name, value in found.items() if value != MISSING]


def _accuracy_notes(run: Run) -> list[str]:
    """Says whose accuracy the headline is, and which evaluation was the best."""
    evals = final_evals(run)
    if not evals:
        return ["No model of the last stage has been evaluated yet."]
    lines = []
    headline = next(iter(evals[-1]["models"]), "")
    if (metric := evals[-1].get("metric")) in WHOSE:
        lines.append(f"Accuracy of {headline} ({metric}): {WHOSE[metric]}.")
    if (best := best_eval(run)) is not None:
        chosen = {
            "validation": "the validation split.",
            "test": "the test set itself, so it is optimistic.",
        }
        lines.append(
            f"Best of {len(evals)} evaluations of the last stage: "
            f"{format_percent(accuracy(best))} in round "
            f"{run.rounds_until(best['stage'], best['round'])}, chosen by "
            f"{chosen[chosen_by(run)]}"
        )
    return lines


def _figures(run: Run, group: str) -> str:
    figures = []
    for name, (title, caption) in _PLOTS[group].items():
        path = run.path / "plots" / f"{name}.svg"
        if path.is_file():
            drawn = read_text(path)
            if not re.search(r"<svg[^>]* viewBox=", drawn):
                raise ValueError(f"{path} is damaged, expected an SVG figure")
            figures.append(framed(name, title, caption, drawn))
    return f'<div class="figures">{"".join(figures)}</div>\n' if figures else ""


def _stage_rows(run: Run) -> list[list[str]]:
    """Returns the traffic and training FLOPs of the stages, by their rounds."""
    stages = run.summary.get("stages", [])
    columns = BITS | {f"FLOPs, {kind}": column for kind, column in FLOPS.items()}
    rows, done = stage_rows(stages, "stage", columns), 0
    for stage, row in zip(stages, rows[1:], strict=False):
        first, done = done + 1, done + stage["rounds"]
        row[1] = f"{first} to {done}" if done > first else str(done)
    return rows
