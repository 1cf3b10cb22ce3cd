"""`python -m sparsefl_jax.report RUN...`: plots and pages of runs, and all in one."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sparsefl_jax import report
from sparsefl_jax.core.formats import say
from sparsefl_jax.system import membership


def main(argv: Sequence[str] | None = None) -> None:
    """Plots runs, writes their pages, compares them, and prints a table of all.

    The table goes to standard output, the number of written files to standard error.
    The comparison is a page, `report.html`, with tables and figures beside it in the
    folder `--out`, see `write_comparison`. By default that is RUN itself if it is the
    only one and holds several runs, as of seeds or of a study, or else `comparison`
    beside the first RUN. A single run is compared only with `--out`.

    Args:
      argv: the arguments; None for those of the command line.

    Raises:
      SystemExit: a folder could not be read or written, with code 2. The table comes
        before anything is written.

    Example:
      >>> main(["no/such/run"])
      Traceback (most recent call last):
      SystemExit: 2
    """
    parser = argparse.ArgumentParser(
        prog="python -m sparsefl_jax.report",
        description="Plot runs, write their report.html, and print a table of all. Runs"
        " that differ only in the seed are one row with mean and 95 % interval; a RUN"
        " may be a folder of seed_*/, or of a study, which stands for its runs.",
    )
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN", help="folder of a run")
    where = "folder of the comparison (default: RUN, or one beside the first RUN)"
    add("--out", metavar="DIR", type=Path, help=where)
    unlike = "compare runs on other data, another partition or another metric too"
    add("--unlike", action="store_true", help=unlike)
    costs = "costs at which to compare accuracies, such as gbit=0.1,0.4 (repeatable)"
    kept = {"type": budget, "action": "append", "default": []}
    add("--budget", metavar="COST=X,Y", help=costs, **kept)
    arguments = parser.parse_args(argv)
    names, out = arguments.runs, arguments.out
    with membership.guard():
        groups = report.read_groups(names)
        groups = report.sort_groups(groups) if len(names) == 1 else groups
        runs = [run for group in groups for run in group.runs]
        budgets, unlike = dict(arguments.budget), arguments.unlike
        comparison = report.compare(groups, budgets=budgets, unlike=unlike)
        say(report.comparison_table(comparison))
        written, folders = [], [run.path for run in runs]
        for run in runs:
            written += [*report.plot_run(run.path), report.write_page(run.path)]
        if len(runs) > 1 or out is not None:
            first = Path(names[0])
            folder = out or (first if len(names) == 1 else first.parent / "comparison")
            written += report.write_comparison(comparison, folder)
            folders.append(folder)
    places = ", ".join(dict.fromkeys(map(str, folders)))
    print(f"wrote {len(written)} files: {places}", file=sys.stderr)


def budget(text: str) -> tuple[str, list[float]]:
    """Reads a cost with its budgets.

    Example:
      >>> budget("gbit=0.1,0.4")
      ('gbit', [0.1, 0.4])
    """
    name, _, values = text.partition("=")
    return name, [float(value) for value in values.split(",")]


if __name__ == "__main__":
    main()
