"""`python -m sparsefl_jax.report RUN...`: plots and pages of runs, and all in one."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sparsefl_jax import report
from sparsefl_jax.core.formats import say
from sparsefl_jax.core.validate import one_line
from sparsefl_jax.system.files import write_text


def main(argv: Sequence[str] | None = None) -> int:
    """Draws runs, writes their pages, compares them and prints a table of all.

    The table goes to standard output, the names of the files written to standard
    error. The comparison is `comparison.csv` and `compare_*.png` in the folder `--out`;
    by default that is `comparison` in RUN itself for one RUN of several seeds, and
    beside the first RUN for several. A single run is not compared, unless `--out` is
    given.

    Args:
      argv: the arguments; None: those of the command line.

    Returns:
      The exit code: 0, or 2 where a folder could not be read or written.

    Example:
      >>> main(["no/such/run"])
      2
    """
    parser = argparse.ArgumentParser(
        prog="python -m sparsefl_jax.report",
        description="Draw the plots of runs, write their report.html, and print a"
        " Markdown table of them all. Runs that differ in the seed alone are one row"
        " with mean and deviation, and a RUN may be a folder of seed_*/.",
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run")
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        help="where comparison.csv and compare_*.png go (default: 'comparison' beside"
        " the first RUN, or in a RUN of several seeds if that is the only one)",
    )
    parser.add_argument(
        "--csv", action="store_true", help="print CSV instead of Markdown"
    )
    arguments = parser.parse_args(argv)
    try:
        _report(arguments.runs, arguments.out, arguments.csv)
    except (ValueError, OSError) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    return 0


def _report(names: Sequence[str], out: Path | None, as_csv: bool) -> None:
    groups = report.read_groups(names)
    runs = [run for group in groups for run in group.runs]
    for run in runs:
        _wrote(*report.plot_run(run.path), report.write_page(run.path))
    table = report.comparison_csv(groups)
    if len(runs) > 1 or out is not None:
        first = Path(names[0])
        folder = out or (first if len(names) == 1 else first.parent) / "comparison"
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "comparison.csv", table)
        _wrote(*report.plot_comparison(groups, folder), folder / "comparison.csv")
    say(table.rstrip() if as_csv else report.comparison_table(groups))


def _wrote(*paths: Path) -> None:
    for path in paths:
        print(f"wrote {path}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
