"""`python -m sparsefl_jax.export RUN` writes a run's model as a safetensors file."""

import argparse
import sys
from collections.abc import Sequence

from sparsefl_jax import export
from sparsefl_jax.system import membership


def main(argv: Sequence[str] | None = None) -> None:
    """Writes the file and prints its sizes.

    Args:
      argv: the arguments; None for those of the command line.

    Raises:
      SystemExit: something could not be read or written, with code 2.

    Example:
      >>> main(["no/such/run"])
      Traceback (most recent call last):
      SystemExit: 2
    """
    parser = argparse.ArgumentParser(
        prog="python -m sparsefl_jax.export",
        description="Write the model that a run deploys as a safetensors file, packed"
        " as on the network, for sparsefl_jax.load_sparse, and print its sizes.",
    )
    add = parser.add_argument
    add("run", metavar="RUN", help="folder of a run")
    where = "default: model.safetensors or client_K.safetensors in RUN"
    add("-o", "--out", metavar="FILE", dest="path", help=where)
    code = "code of the positions; none writes plain float32 tensors with zeros"
    add("--index", default="bitmap", choices=export.INDEXES, help=code)
    which = "name of a deployed model (default: the first)"
    add("--model", metavar="NAME", dest="name", help=which)
    add("--client", metavar="K", type=int, help="id of a client, for its own model")
    best = "model of the best evaluation, not the last"
    add("--best", action="store_true", help=best)
    with membership.guard():
        path, sizes = export.export_run(**vars(parser.parse_args(argv)))
    told = ", ".join(f"{name} {size:,}" for name, size in sizes._asdict().items())
    print(f"wrote {path}; bytes: {told}", file=sys.stderr)


if __name__ == "__main__":
    main()
