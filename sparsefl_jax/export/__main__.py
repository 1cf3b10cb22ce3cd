"""`python -m sparsefl_jax.export RUN`: a run's model as a safetensors file."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sparsefl_jax import export
from sparsefl_jax.core import formats
from sparsefl_jax.runs import cli


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the file and prints what each of its tensors takes.

    Args:
      argv: the arguments; None: those of the command line.

    Returns:
      The exit code: 0, or 2 where something could not be read or written.

    Example:
      >>> main(["no/such/run"])
      2
    """
    parser = argparse.ArgumentParser(
        prog="python -m sparsefl_jax.export",
        description="Write the model that a run deploys as a safetensors file, packed"
        " as on the network, for sparsefl_jax.load_sparse, and print what it takes.",
    )
    parser.add_argument("run", metavar="RUN", help="folder of a run")
    parser.add_argument(
        "-o",
        "--out",
        metavar="FILE",
        type=Path,
        help="default: model.safetensors or client_K.safetensors in RUN",
    )
    parser.add_argument(
        "--index",
        default="bitmap",
        choices=export.INDEXES,
        help="how positions are written; none: zeros too, as plain float32 tensors",
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="which of the deployed models; default: that at the target density",
    )
    parser.add_argument(
        "--client", metavar="K", type=int, help="a client's own model, by its id"
    )
    parser.add_argument(
        "--best", action="store_true", help="of the best evaluation, not the last"
    )
    told = parser.parse_args(argv)
    try:
        path, sizes = export.export_run(
            told.run,
            told.out,
            index=told.index,
            name=told.model,
            client=told.client,
            best=told.best,
        )
    except (ValueError, OSError) as error:
        print(f"error: {cli.one_line(error)}", file=sys.stderr)
        return 2
    formats.say(export.sizes_table(sizes))
    print(f"wrote {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
