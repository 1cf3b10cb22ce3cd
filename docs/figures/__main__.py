"""Draws all pictures, or those named: `python -m docs.figures sent_spafl peers`."""

import argparse
import time
from functools import partial
from pathlib import Path

import jax

from docs.figures import (
    adapters,
    methods,
    packet_bytes,
    partitions,
    printed,
    purging,
    run,
    speed,
    text,
    tiers,
    timeline,
    which_method,
)

OTHERS = (adapters, packet_bytes, partitions, purging, run, text, tiers, timeline)
OTHERS += (which_method,)
PICTURES = {
    **{each.__name__.rpartition(".")[2]: each.draw for each in OTHERS},
    **{
        f"sent_{name}": partial(methods.draw, case)
        for name, case in methods.CASES.items()
    },
    **{
        f"printed_{paper}": partial(printed.draw, paper)
        for paper in ("complement", "fedsparsify", "flash", "spafl")
    },
    "peers": speed.draw_peers,
    "clients": speed.draw_clients,
}


def main() -> None:
    """Writes each picture as an SVG file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=", ".join(PICTURES))
    static = Path(__file__).parents[1] / "_static"
    parser.add_argument("--out", type=Path, default=static)
    asked = parser.parse_args()
    unknown = [name for name in asked.names if name not in PICTURES]
    if unknown:
        parser.error(
            f"no picture {unknown[0]!r}, expected one of {', '.join(PICTURES)}"
        )
    # The runs are tiny, so that nearly all of the time is compilation.
    jax.config.update("jax_disable_most_optimizations", True)
    asked.out.mkdir(parents=True, exist_ok=True)
    for name in asked.names or PICTURES:
        since = time.perf_counter()
        path = asked.out / f"{name}.svg"
        PICTURES[name](path)
        print(f"{path} {time.perf_counter() - since:.1f} s", flush=True)


if __name__ == "__main__":
    main()
