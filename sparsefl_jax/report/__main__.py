"""`python -m sparsefl_jax.report RUN...`: each run's plots, and one table of all."""

import argparse
import sys
from collections.abc import Sequence

from sparsefl_jax.report import comparison_table, plot_run, read_run


def main(argv: Sequence[str] | None = None) -> int:
    """Draws each run's plots into its folder and prints a Markdown table of all.

    Args:
      argv: the folders of runs; None: those of the command line.

    Returns:
      The exit code: 0, or 2 where a folder could not be read.

    Example:
      >>> main(["no/such/run"])
      2
    """
    parser = argparse.ArgumentParser(
        prog="python -m sparsefl_jax.report",
        description="Draw the plots of runs and print a Markdown table of them all.",
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run")
    names = parser.parse_args(argv).runs
    try:
        runs = [read_run(name) for name in names]
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for run in runs:
        for path in plot_run(run.path):
            print(f"wrote {path}", file=sys.stderr)
    print(comparison_table(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
