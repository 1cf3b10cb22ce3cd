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
    """Plots runs, writes their pages, compares them, and prints a table of all.

    The table goes to standard output, the number of written files to standard error.
    The comparison is `comparison.csv` and `compare_*.png` in the folder `--out`. By
    default that is `comparison` in RUN if it is the only one and has several seeds, and
    else beside the first RUN. A single run is compared only with `--out`.

    Args:
      argv: the arguments; None for those of the command line.

    Returns:
      The exit code: 0, or 2 if a folder could not be read or written.

    Example:
      >>> main(["no/such/run"])
      2
    """
    parser = argparse.ArgumentParser(
        prog="python -m sparsefl_jax.report",
        description="Plot runs, write their report.html, and print a Markdown table of"
        " all. Runs that differ only in the seed are one row with mean and deviation; a"
        " RUN may be a folder of seed_*/.",
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run")
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        help="folder of comparison.csv and compare_*.png (default: 'comparison' beside"
        " the first RUN, or in RUN if it is the only one and has several seeds)",
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
    written = []
    for run in runs:
        written += [*report.plot_run(run.path), report.write_page(run.path)]
    table = report.comparison_csv(groups)
    if len(runs) > 1 or out is not None:
        first = Path(names[0])
        folder = out or (first if len(names) == 1 else first.parent) / "comparison"
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "comparison.csv", table)
        plots = report.plot_comparison(groups, folder)
        written += [*plots, folder / "comparison.csv"]
    print(f"wrote {len(written)} files: {_folders(written)}", file=sys.stderr)
    say(table.rstrip() if as_csv else report.comparison_table(groups))


def _folders(paths: Sequence[Path]) -> str:
    """Returns the folders of files, those of a run's plots as that of the run.

    Example:
      >>> _folders([Path("a/plots/x.png"), Path("a/report.html"), Path("b/c.csv")])
      'a, b'
    """
    folders = (p.parent.parent if p.parent.name == "plots" else p.parent for p in paths)
    return ", ".join(dict.fromkeys(map(str, folders)))


if __name__ == "__main__":
    sys.exit(main())
