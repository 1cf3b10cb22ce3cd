"""Which layer feeds which, decided here for all that slices, prunes or shrinks widths.

It is read off the leaves of the parameters: a layer has a `kernel` [..., I, O]. In the
order of their names, conv10 behind conv9, the convolutions and then the dense layers
make a chain, in which a convolution may read whatever an earlier one wrote: a residual
sum adds channels of one place. Behind convolutions a dense layer reads flattened
[H, W, C], channels fastest.
"""

import itertools
import re
from typing import NamedTuple

import jax

from sparsefl_jax.core.types import PyTree


class Link(NamedTuple):
    """A layer, the normalisation behind it, and the only layer that reads it."""

    layer: str
    norm: str  # no such leaves where there is none
    reader: str


def modules(params: PyTree) -> dict[str, dict]:
    """The leaves by module and by name, modules in the order of their names.

    Example:
      >>> modules({f'fc{i}': {'kernel': i} for i in (10, 9)})
      {'fc9': {'kernel': 9}, 'fc10': {'kernel': 10}}
    """
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        module, _, name = name.rpartition("/")
        found.setdefault(module, {})[name] = leaf
    return {module: found[module] for module in sorted(found, key=_natural)}


def layers(params: PyTree) -> dict[str, tuple[int, ...]]:
    """The shapes of all kernels, by layer, from the input to the output.

    Example:
      >>> shape = jax.ShapeDtypeStruct((3, 4), 'float32')
      >>> list(layers({f'fc{i}': {'kernel': shape} for i in (10, 9)}))
      ['fc9', 'fc10']
    """
    found = modules(params).items()
    kernels = {m: tuple(v["kernel"].shape) for m, v in found if "kernel" in v}
    order = sorted(kernels, key=lambda module: len(kernels[module]) == 2)
    return {module: kernels[module] for module in order}


def _natural(name: str) -> list:
    """A sort key in which conv10 follows conv9."""
    return [int(t) if t.isdigit() else t for t in re.split(r"(\d+)", name)]


def channels(kernels: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The channels along each axis of every kernel, 0 where an axis is kept whole.

    The first layer reads the input whole, and the last writes all classes.

    Args:
      kernels: as `layers` returns them, at least one.

    Raises:
      ValueError: a layer reads what no layer before it writes.

    Example:
      >>> channels({'conv1': (3, 3, 1, 8), 'fc1': (32, 10)})
      {'conv1': (0, 0, 0, 8), 'fc1': (8, 0)}
    """
    axes, written, before = {}, set(), None
    for module, (*window, inputs, outputs) in kernels.items():
        reads = inputs
        if before is None:
            reads = 0
        elif not window:
            last = kernels[before]
            fits = inputs == last[-1]
            if len(last) > 2:  # flattened, or the mean over positions
                reads, fits = last[-1], inputs % last[-1] == 0
        else:
            fits = inputs in written
        if before is not None and not fits:
            raise ValueError(
                f"width slicing: {module!r} reads {inputs} channels, expected what an "
                f"earlier layer writes, as in a chain or a residual network"
            )
        written.add(outputs)
        before = module
        axes[module] = (*(0 for _ in window), reads, outputs)
    axes[before] = (*axes[before][:-1], 0)
    return axes


def links(params: PyTree, variant: str | None = None) -> list[Link]:
    """The layers that can shrink, front to back, by the names that all models use.

    In a chain these are all but the last, and bn`i` stands behind the i-th. A block
    with a shortcut holds conv1 and conv2, of which the first can.

    Args:
      params: of a built-in network; only the paths are read.
      variant: of a residual network, as `resnet18` takes it.

    Raises:
      ValueError: a layer has another name.
    """
    order = [m for m, leaves in modules(params).items() if "kernel" in leaves]
    inner = [m.rpartition("/")[0] for m in order if m.endswith("/conv2")]
    if inner:
        norm = "bn2" if variant == "preactivation" else "bn1"
        return [Link(f"{b}/conv1", f"{b}/{norm}", f"{b}/conv2") for b in inner]
    for name in order:
        if not re.fullmatch(r"(conv|fc)\d*", name):
            raise ValueError(f"layer {name!r}, expected conv or fc and a number")
    pairs = enumerate(itertools.pairwise(order), 1)
    return [Link(layer, f"bn{i}", reader) for i, (layer, reader) in pairs]
