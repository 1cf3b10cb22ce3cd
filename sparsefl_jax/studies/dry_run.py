"""What is known of a study before it runs: its points, and in what they differ."""

from collections.abc import Sequence
from pathlib import Path

from sparsefl_jax.core.formats import align, format_si
from sparsefl_jax.report import differences
from sparsefl_jax.runs import dry_run, experiment, fit_rounds
from sparsefl_jax.studies.points import Point, groups, naming, with_kept_rounds

_HEAD = ["point", "seeds", "rounds", "bits of a round", "FLOPs of a round", "memory"]


def text(points: Sequence[Point], workdir: Path | None = None) -> str:
    """Returns the points of a study and what is known of each, without running any.

    Args:
      points: all of the study.
      workdir: of the study; the rounds that pilots have found of its runs there count.

    Raises:
      ValueError: names a point that cannot run, and why.
    """
    if workdir is not None:
        points = [with_kept_rounds(workdir, point) for point in points]
    rows = []
    for point in points:
        with naming(point):
            plan = experiment.build(point.config, started=True)
        setup, last = plan.setup, len(plan.stages) - 1
        down, up, flops = dry_run.largest_round(plan, last)
        rounds = sum(stage.num_rounds for stage in setup.stages)
        rows.append(
            [
                point.label or point.name,
                str(len(point.seeds)),
                "by a pilot" if fit_rounds.wanted(point.config) else str(rounds),
                format_si(down + up, "bit"),
                format_si(flops),
                dry_run.largest([stage.memory for stage in plan.stages]),
            ]
        )
    runs = sum(len(point.seeds) for point in points)
    lines = [
        *align([_HEAD, *rows]),
        "",
        f"{len(points)} points, {runs} runs; bits and FLOPs are the most that a round "
        "of the last stage takes, all weights and positions",
        "",
    ]
    if differing := differences.settings(groups(points)):
        lines.append("what differs, beside the method and what follows from it:")
        for i, point in enumerate(points):
            values = (
                f"{name}={of[i]}" for name, of in differing.items() if of[i] != "-"
            )
            lines.append(f"  {point.label or point.name}: {', '.join(values) or '-'}")
    return "\n".join(lines)
