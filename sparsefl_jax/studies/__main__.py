"""Runs one point of a study: `python -m sparsefl_jax.studies WORKDIR POINT CORES`.

`processes` starts it; CORES are those to run on, such as 0,1.
"""

import os
import sys

from sparsefl_jax.core.check import one_line
from sparsefl_jax.studies import runner
from sparsefl_jax.system import hardware, interrupt


def main() -> int:
    """Runs the point that the command line names; returns the exit code."""
    workdir, point, cores = sys.argv[1:]
    if hasattr(os, "sched_setaffinity"):  # Linux only
        os.sched_setaffinity(0, map(int, cores.split(",")))
    hardware.use_cpu_cores()
    hardware.keep_compilations()
    try:
        runner.run_point(workdir, point)
    except interrupt.StoppedError as error:
        print(error, file=sys.stderr)
        return error.code
    except ValueError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
