"""Which layer feeds which, by the names that all networks here use."""

import itertools
import re
from typing import NamedTuple

from sparsefl_jax.core.types import PyTree


class Link(NamedTuple):
    """A layer, the normalisation behind it, and the only layer that reads it."""

    layer: str
    norm: str  # no such leaves where there is none
    reader: str


def links(params: PyTree, variant: str | None = None) -> list[Link]:
    """The layers that can shrink, front to back, by the names that all models use.

    Layers are numbered: conv1, conv2, ..., then fc1, fc2, ..., and bn`i` stands behind
    the i-th of all of them. A block holds conv1 and conv2.

    Raises:
      ValueError: a layer has another name.
    """
    blocks = sorted(name for name in params if "conv2" in params[name])
    if blocks:
        norm = "bn2" if variant == "preactivation" else "bn1"
        return [Link(f"{b}/conv1", f"{b}/{norm}", f"{b}/conv2") for b in blocks]

    def place(name):
        found = re.fullmatch(r"(conv|fc)(\d*)", name)
        if not found:
            raise ValueError(f"layer {name!r}, expected conv or fc and a number")
        return found[1], int(found[2] or 0)

    layers = sorted((n for n in params if "kernel" in params[n]), key=place)
    pairs = enumerate(itertools.pairwise(layers), 1)
    return [Link(layer, f"bn{i}", reader) for i, (layer, reader) in pairs]
