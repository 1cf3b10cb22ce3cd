"""Runs a benchmark and writes its table.

    python -m benchmarks NAME [options]
    python -m benchmarks throughput --only mlp-10 mlp-1000
    python -m benchmarks throughput --help

A benchmark is a function `run` in the module of its name, which yields the rows of a
table, {column: figure}. Its arguments are the options of the command, with their
defaults; `CHOICES` of the module lists the values that an option accepts.
"""

import argparse
import importlib
import inspect
import os
import sys
from pathlib import Path

from benchmarks import measure

NAMES = (
    *("throughput", "population", "peers.compare", "programs", "lowering"),
    *("mismatch", "targets", "start"),
)


def parser(name: str) -> argparse.ArgumentParser:
    """Returns the options of a benchmark: the arguments of its `run`."""
    module = importlib.import_module(f"benchmarks.{name}")
    made = argparse.ArgumentParser(
        prog=f"python -m benchmarks {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    choices = getattr(module, "CHOICES", {})
    for option, argument in inspect.signature(module.run).parameters.items():
        default, allowed = argument.default, choices.get(option)
        if isinstance(default, bool):
            made.add_argument(f"--{option}", action="store_true")
        else:
            many = isinstance(default, tuple)
            kind = type((*default, "")[0] if many else default)
            how = {"type": kind, "choices": allowed, "nargs": "+" if many else None}
            metavar = "NAME" if allowed else option.upper()
            made.add_argument(f"--{option}", default=default, metavar=metavar, **how)
    made.set_defaults(run=module.run)
    made.add_argument("--out", type=Path, default=Path("runs/benchmarks"))
    return made


def main(name: str, argv: list[str]) -> None:
    """Runs a benchmark; prints each row when it is ready, and the table at the end."""
    given = vars(parser(name).parse_args(argv))
    run, out = given.pop("run"), given.pop("out")
    load, rows = round(os.getloadavg()[0], 2), []
    for row in run(**given):
        rows.append(row)
        print(*map(measure.shown, row.values()), sep="  ", flush=True)
    about = {k: v for k, v in given.items() if v} | measure.machine() | {"load": load}
    measure.publish(name, out, about, rows)


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
        sys.exit(f"expected python -m benchmarks NAME, one of {', '.join(NAMES)}")
    main(sys.argv[1], sys.argv[2:])
