"""Chooses a form for each pass of a convolution, and who trains at a time.

Inside a loop, XLA:CPU has no fast gradient convolution. Under vmap over clients a
convolution becomes a grouped one, which is slow for most networks. So the forward pass
and both gradients each have one of the forms of `lowerings.py`. No form wins
everywhere: `choose` looks the layer up in `lowerings.json`, which `benchmarks.lowering`
writes. On accelerators only whole rounds show what is faster, and all layers have one
form; `benchmarks/results/programs.json` has their milliseconds, those of GPUs by the
clock and those of TPUs by the estimate of the compiler.
"""

import functools
import json
import math
from importlib import resources
from typing import NamedTuple

import jax

# Of all layers under vmap over clients; that of other accelerators is `plain`.
UNDER_VMAP = {"gpu": "patches"}
# On TPUs the networks with convolutions are faster one client after another, those of
# dense layers under vmap: between them lie 4e6 and 1.5e8 multiply-adds of a step.
_MACS_IN_TURN = 2.4e7


class Lowering(NamedTuple):
    """The form of each pass of one layer, from `lowerings.NAMES`."""

    forward: str
    input_grad: str
    weight_grad: str
    # Images processed at a time, so that a pass stays in the cache; 0 for all. Of a
    # batch that is no multiple of them, as many as both are multiples of.
    images: int = 0


class Layer(NamedTuple):
    """The shape of a convolution, the key of the table."""

    batch: int
    height: int
    width: int
    inputs: int
    outputs: int
    size: int
    stride: int = 1
    pad: int = 0


@functools.cache
def table() -> dict[Layer, Lowering]:
    """Reads from `lowerings.json` the fastest lowering of each layer that was timed.

    The file maps the numbers of a layer to the fields of its `Lowering`; beside these
    it names the hardware, a CPU, and the date.
    """
    file = resources.files("sparsefl_jax.models").joinpath("lowerings.json")
    layers = json.loads(file.read_text())["cpu"]["layers"].items()
    return {Layer(*map(int, key.split())): Lowering(*names) for key, names in layers}


def in_turn(platform: str, macs: float) -> bool:
    """Returns whether clients run faster one after another than under vmap.

    Args:
      platform: 'cpu', 'gpu' or 'tpu'.
      macs: multiply-adds of a step, which is a minibatch of one client.
    """
    return platform == "cpu" or (platform == "tpu" and macs > _MACS_IN_TURN)


def platform() -> str:
    """Returns what the program being traced is for: 'cpu', 'gpu' or 'tpu'.

    Inside `jax.shard_map`, as in every program of a run, that is the platform of the
    mesh; elsewhere it is that of JAX's first device.

    Example:
      >>> mesh = jax.make_mesh((1,), ("clients",))
      >>> with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
      ...     platform() == mesh.devices.flat[0].platform
      True
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return (device or jax.devices()[0]).platform


def lowering(platform: str, chunk: int) -> str:
    """Returns the form of a round's convolutions that was timed with its chunk.

    It is 'auto', which `choose` knows, but where an accelerator runs one client after
    another.

    Example:
      >>> lowering("gpu", 1), lowering("gpu", 10)
      ('plain', 'auto')
    """
    return "plain" if chunk == 1 and platform != "cpu" else "auto"


@functools.cache
def choose(layer: Layer, platform: str, dtype: str = "float32") -> Lowering:
    """Returns the fastest measured lowering of a layer, or of the most similar one.

    If no similar layer was measured, a rule decides. Accelerators use one form for all
    layers, see `UNDER_VMAP`.

    Args:
      layer: the shape of the convolution.
      platform: 'cpu', 'gpu' or 'tpu'.
      dtype: 'float32' or 'bfloat16'.

    Example:
      >>> choose(Layer(32, 40, 40, 16, 16, 7), "cpu").input_grad
      'patches'
    """
    if platform != "cpu":
        form = UNDER_VMAP.get(platform, "plain")
        return Lowering(form, form, form)
    measured = table() if dtype == "float32" else {}
    if layer in measured:
        return measured[layer]
    near = min(measured, key=functools.partial(_distance, layer), default=None)
    if near and _distance(layer, near) < math.log(16):
        same = layer[1:] == near[1:]
        return measured[near] if same else measured[near]._replace(images=0)
    # A valid convolution's canonical input gradient also computes the padded border.
    keeps_size = layer.stride == 1 and 2 * layer.pad >= layer.size - 1
    return Lowering("canonical", "canonical" if keeps_size else "patches", "canonical")


def _distance(a: Layer, b: Layer) -> float:
    """Sums the log ratios of two shapes; infinite if kernel, stride or pad differ."""
    if a[5:] != b[5:]:
        return math.inf
    batch, *ratios = (abs(math.log(m / n)) for m, n in zip(a[:5], b[:5], strict=True))
    # The batch matters least, but far from it a form may take too much memory.
    return batch / 2 + sum(ratios) if batch < math.log(16) else math.inf
