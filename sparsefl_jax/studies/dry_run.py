"""Plans a study: what its points are, in what they differ, what each will cost."""

from collections.abc import Sequence
from pathlib import Path

import jax

from sparsefl_jax.core.formats import align, format_seconds, format_si
from sparsefl_jax.report.comparison import differences
from sparsefl_jax.report.comparison.groups import Group
from sparsefl_jax.report.load import Run
from sparsefl_jax.runs import experiment, fit_rounds
from sparsefl_jax.runs.config import plain
from sparsefl_jax.runs.plan import describe, formatting
from sparsefl_jax.studies.points import Point, naming, with_kept_rounds

_HEAD = ["point", "seeds", "rounds", "bits", "FLOPs executed", "memory", "time"]


def text(points: Sequence[Point], workdir: Path | None = None) -> str:
    """Returns the plan of a study; runs nothing, not even a pilot.

    Where a pilot will set the rounds, they and the costs are those that the plan's
    bound pays for, marked by "≥": a run has as many rounds or more.

    Args:
      points: all of the study.
      workdir: of the study; what pilots have found of its runs there counts.

    Raises:
      ValueError: names a point that cannot run, and why.
    """
    if workdir is not None:
        points = [with_kept_rounds(workdir, point) for point in points]
    rows, seconds, bounds = [], [0.0, 0.0], False
    for point in points:
        with naming(point):
            config, _ = fit_rounds.fitted(point.config, experiment.build, measure=False)
            parts = experiment.build(config, started=True)
        plan = describe.describe(*parts, key=jax.random.key(config.seed))
        bound = bool(fit_rounds.wanted(config))
        bounds |= bound
        each, count = plan["total"], len(point.seeds)
        seconds = [s + count * t for s, t in zip(seconds, each["seconds"], strict=True)]
        rows.append([point.label or point.name, *_cells(plan, count, "≥ " * bound)])
    runs = sum(len(point.seeds) for point in points)
    lines = [
        *align([_HEAD, *rows]),
        "",
        f"{len(points)} points, {runs} runs, {formatting.span(seconds, format_seconds)}"
        " one after another; all but the seeds is that of one run",
    ]
    if bounds:
        lines.append(
            "≥: by the plan's bound; the pilot that a point begins with may find more"
        )
    return "\n".join([*lines, "", *_differences(points)])


def _cells(plan: dict, seeds: int, mark: str) -> list[str]:
    total = plan["total"]
    return [
        str(seeds),
        f"{mark}{total['rounds']}",
        formatting.span(total["gbit"], lambda g: format_si(1e9 * g, "bit")),
        format_si(1e15 * total["pflop_executed"]),
        formatting.memory(plan["stages"], total),
        formatting.span(total["seconds"], format_seconds),
    ]


def _differences(points: Sequence[Point]) -> list[str]:
    """Returns the fields in which the configurations differ, a line for each point."""
    groups = [
        Group(p.name, [Run(Path(), [], [], [0], {}, plain.plain(p.config), None)])
        for p in points
    ]
    differing = differences.settings(groups)
    if not differing:
        return []
    lines = ["what differs, beside the method and what follows from it:"]
    for i, point in enumerate(points):
        values = (f"{name}={of[i]}" for name, of in differing.items() if of[i] != "-")
        lines.append(f"  {point.label or point.name}: {', '.join(values) or '-'}")
    return lines
