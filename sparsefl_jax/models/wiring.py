"""Decides which layer feeds which, for all code that slices, prunes or shrinks widths.

The wiring follows from the leaves of the parameters. A layer has a `kernel` [..., I,
O]. In the natural order of their names (conv10 after conv9), the convolutions and then
the dense layers form a chain. A convolution may read what any earlier one writes,
because residual sums add equal numbers of channels. A dense layer after convolutions
reads flattened [H, W, C], with the channels fastest.
"""

import itertools
import re
from typing import NamedTuple

from flax.traverse_util import flatten_dict

from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import PyTree


class Link(NamedTuple):
    """A layer, the normalisation after it, and the only layer that reads it."""

    layer: str
    norm: str  # the tree has no such leaves without normalisation
    reader: str


def modules(params: PyTree) -> dict[str, dict]:
    """Returns the leaves by module and name, the modules in natural order.

    Example:
      >>> modules({f'fc{i}': {'kernel': i} for i in (10, 9)})
      {'fc9': {'kernel': 9}, 'fc10': {'kernel': 10}}
    """
    found = {}
    for path, leaf in flatten_dict(params, sep="/").items():
        module, _, name = path.rpartition("/")
        found.setdefault(module, {})[name] = leaf
    return {module: found[module] for module in sorted(found, key=_natural)}


def layers(params: PyTree) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of all kernels by layer, from the input to the output.

    Example:
      >>> import jax
      >>> shape = jax.ShapeDtypeStruct((3, 4), 'float32')
      >>> list(layers({f'fc{i}': {'kernel': shape} for i in (10, 9)}))
      ['fc9', 'fc10']
    """
    found = modules(params).items()
    kernels = {m: tuple(v["kernel"].shape) for m, v in found if "kernel" in v}
    order = sorted(kernels, key=lambda module: len(kernels[module]) == 2)
    return {module: kernels[module] for module in order}


def _natural(name: str) -> list:
    """Returns a sort key by which conv10 follows conv9."""
    return [int(t) if t.isdigit() else t for t in re.split(r"(\d+)", name)]


def channels(kernels: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Returns the channels along each axis of every kernel, 0 for axes kept whole.

    The first layer reads the whole input, and the last writes all classes.

    Args:
      kernels: the shapes of at least one kernel, as `layers` returns them.

    Raises:
      ValueError: a layer reads a number of channels that no earlier layer writes.

    Example:
      >>> channels({'conv1': (3, 3, 1, 8), 'fc1': (32, 10)})
      {'conv1': (0, 0, 0, 8), 'fc1': (8, 0)}
    """
    axes, written, before = {}, set(), None
    for module, (*window, inputs, outputs) in kernels.items():
        reads, fits = inputs, inputs in written
        if before is None:
            reads, fits = 0, True
        elif not window:
            last = kernels[before]
            fits = inputs == last[-1]
            if len(last) > 2:  # flattened, or the mean over positions
                reads, fits = last[-1], inputs % last[-1] == 0
        if not fits:
            raise UserError(
                f"width slicing: {module!r} reads {inputs} channels, expected a number "
                "that an earlier layer writes"
            )
        written.add(outputs)
        before = module
        axes[module] = (*(0 for _ in window), reads, outputs)
    axes[before] = (*axes[before][:-1], 0)
    return axes


def links(params: PyTree, variant: str | None = None) -> list[Link]:
    """Returns the layers whose width can shrink, from the input to the output.

    In a chain these are all but the last, and bn`i` follows the i-th. In a block with a
    shortcut, conv1 can shrink, which only conv2 reads.

    Args:
      params: the parameters of a built-in network; only the paths are read.
      variant: the variant of a residual network, as `resnet18` takes it.

    Raises:
      ValueError: a layer is named differently.
    """
    order = [m for m, leaves in modules(params).items() if "kernel" in leaves]
    inner = [m.rpartition("/")[0] for m in order if m.endswith("/conv2")]
    if inner:
        norm = "bn2" if variant == "preactivation" else "bn1"
        return [Link(f"{b}/conv1", f"{b}/{norm}", f"{b}/conv2") for b in inner]
    for name in order:
        if not re.fullmatch(r"(conv|fc)\d*", name):
            raise UserError(f"layer {name!r}, expected conv or fc and a number")
    pairs = enumerate(itertools.pairwise(order), 1)
    return [Link(layer, f"bn{i}", reader) for i, (layer, reader) in pairs]
