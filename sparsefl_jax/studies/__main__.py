"""Runs one point of a study: `python -m sparsefl_jax.studies WORKDIR POINT`."""

import argparse
import os
import sys

from sparsefl_jax.core.validate import one_line
from sparsefl_jax.studies import runner
from sparsefl_jax.system import hardware, interrupt


def main() -> int:
    """Runs the point that the command line names; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m sparsefl_jax.studies", description="Run a point of a study."
    )
    parser.add_argument("workdir", help="the study's folder, which holds study.json")
    parser.add_argument("point", help="the name of the point")
    parser.add_argument("--cores", help="cores to run on, such as 0,1 (default: all)")
    arguments = parser.parse_args()
    if arguments.cores and hasattr(os, "sched_setaffinity"):  # Linux only
        os.sched_setaffinity(0, map(int, arguments.cores.split(",")))
    hardware.use_cpu_cores()
    hardware.keep_compilations()

    try:
        runner.run_point(arguments.workdir, arguments.point)
    except interrupt.StoppedError as error:
        print(error, file=sys.stderr)
        return error.code
    except ValueError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
