"""Writes a run's page, `report.html`, which needs no network and no script."""

from pathlib import Path

from sparsefl_jax.core.flatten import flatten
from sparsefl_jax.core.formats import MISSING, format_percent, format_seconds, format_si
from sparsefl_jax.data import partition_statistics, statistics_rows
from sparsefl_jax.report import charge, density, masks, table, tiers
from sparsefl_jax.report.comparison import costs, evaluations
from sparsefl_jax.report.load import Run, column, read_run
from sparsefl_jax.report.render import pictures, render
from sparsefl_jax.system.files import write_text


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
      sparsefl_jax.UserError: run_dir='no/such/run' expected a folder with
      metrics.jsonl.
    """
    run = read_run(run_dir)
    name, head = run.path.resolve().name, table.heading(run.summary)
    split, best = run.partition, evaluations.best_eval(run)
    stages = run.summary.get("stages", [])
    flops = {f"FLOPs, {kind}": column for kind, column in table.FLOPS.items()}
    page = render(
        "run.html",
        run=run,
        title=head or name,
        name=name,
        heading=head.replace(", ", " · "),
        key=_key_facts(run),
        plots=pictures((run.path / "plots").glob("*.svg")),
        evals=evaluations.final_evals(run),
        whose=table.WHOSE,
        best=best and (evaluations.accuracy(best), run.done(best)),
        chosen_by=evaluations.chosen_by(run),
        # Densities are in a table of their own.
        accuracy=[row[:-1] for row in table.accuracy_rows(run.summary)],
        density=density,
        same_client_masks=masks.same_client_masks(run),
        unheard=tiers.unheard(run.train),
        tiers=tiers.tier_rows(tiers.totals(run.train, evaluations.final_evals(run))),
        partition=[] if split is None else statistics_rows(partition_statistics(split)),
        stages=table.stage_rows(stages, "stage", table.BITS | flops),
        assumed=charge.assumptions(run),
        charged=charge.charge_rows(run),
        fields=flatten(run.config).items(),
        made_with=[table.made_with(run.summary)],
    )
    path = run.path / "report.html"
    write_text(path, page)
    return path


def _key_facts(run: Run) -> list[tuple[str, str]]:
    """Returns the main results with their names."""
    stages = run.summary.get("stages", [])
    last, best = evaluations.last_eval(run), evaluations.best_eval(run)
    when = f", round {run.done(best)}" if best else ""
    model = next(iter(last["models"].values()), {})
    flops, dense = (sum(s[k] for s in stages) for k in ("flops", "flops_dense"))
    clients, spent = last.get("client_accuracy", {}), costs.progress(run)
    gbit, hours = (column(spent, name).max() for name in ("gbit", "hours"))
    found = {
        "accuracy, last round": format_percent(evaluations.accuracy(last)),
        f"best{when}": format_percent(evaluations.accuracy(best)),
        "clients, p10": format_percent(clients.get("p10")),
        "clients, median": format_percent(clients.get("median")),
        "density, all parameters": format_percent(model.get("density")),
        "traffic, both ways": format_si(1e9 * gbit, "bit"),
        "FLOPs / dense": f"{flops / dense:.3g}" if dense else MISSING,
        "virtual time": format_seconds(3600 * hours),
        "time": table.duration({"seconds": run.summary.get("seconds")}),
    }
    return [(name, value) for name, value in found.items() if value != MISSING]
