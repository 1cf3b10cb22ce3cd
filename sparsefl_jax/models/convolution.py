"""A convolution that chooses a lowering for each of its three passes.

Inside a loop, XLA:CPU has no fast gradient convolution. Under vmap over clients a
convolution becomes a grouped one, which is slow everywhere. So the forward pass and
both gradients each use one of the forms of `lowerings.py`. No form wins everywhere:
`auto` looks the layer up in `lowerings.json`, which `benchmarks.lowering` writes; on
accelerators all layers have the form that `programs` names.
"""

import functools
import json
import math
from importlib import resources
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsefl_jax.core.types import Array
from sparsefl_jax.core.validate import at_least, one_of
from sparsefl_jax.models import lowerings, programs


class Lowering(NamedTuple):
    """The form of each pass of one layer, from `lowerings.NAMES`."""

    forward: str
    input_grad: str
    weight_grad: str
    # Images processed at a time, so that a pass stays in the cache; 0 for all.
    images: int = 0

    @property
    def names(self) -> tuple[str, str, str]:
        """The names of the three passes."""
        return self[:3]


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

    @property
    def key(self) -> str:
        """The layer's name in `lowerings.json`."""
        b, h, w, c, o, k, s, p = self
        return f"{b}x{h}x{w}x{c} {k}x{k}x{o} s{s} p{p}"

    @property
    def out(self) -> tuple[int, int]:
        """Height and width of the output."""
        sides = (self.height, self.width)
        h, w = ((n + 2 * self.pad - self.size) // self.stride + 1 for n in sides)
        return h, w


def convolve(
    x: Array,
    kernel: Array,
    *,
    stride: int = 1,
    pad: int = 0,
    lowering: str | Lowering = "auto",
) -> Array:
    """Convolves images with square kernels.

    Reverse mode of any order works, and so does forward over reverse. Forward mode
    alone needs the lowering `plain`.

    Args:
      x: [B, H, W, I], float32 or bfloat16.
      kernel: [k, k, I, O], of the same dtype.
      stride: the stride of both axes.
      pad: the zeros added on each of the four sides.
      lowering: `auto`, a name in `lowerings.NAMES`, or a `Lowering`. `available`
        replaces forms that do not exist for the layer. `plain` in all passes processes
        the whole batch, whatever `images` says. `auto` never uses Winograd for
        bfloat16; if asked for by name, Winograd computes in float32.

    Returns:
      [B, h, w, O] in x's dtype, h = (H + 2 pad - k) // stride + 1.

    Raises:
      ValueError: a lowering is unknown, or the kernel is larger than the padded image.

    Example:
      >>> x, kernel = jnp.ones((1, 4, 4, 2)), jnp.ones((3, 3, 2, 5))
      >>> convolve(x, kernel, pad=1, lowering="winograd2").shape
      (1, 4, 4, 5)
    """
    layer = Layer(*x.shape, kernel.shape[3], kernel.shape[0], stride, pad)
    if min(layer.out) < 1:
        sides = f"{layer.height}x{layer.width}"
        raise ValueError(
            f"kernel size {layer.size} exceeds the image {sides}, pad={pad}"
        )
    if lowering == "auto":
        lowering = choose(layer, platform(), x.dtype.name)
    lowering = _checked(lowering)
    if set(lowering.names) == {"plain"}:
        return lowerings.plain(x, kernel, stride, pad)
    lowering = available(layer, lowering)
    conv = _convolution(stride, pad, lowering.names)
    if not lowering.images:
        return conv(x, kernel)
    parts = x.reshape(-1, lowering.images, *x.shape[1:])
    # This cast makes the sum of the parts' kernel gradients a float32 sum.
    kernel32 = kernel.astype(jnp.float32)
    y = lax.map(lambda part: conv(part, kernel32.astype(kernel.dtype)), parts)
    return y.reshape(layer.batch, *layer.out, layer.outputs)


def _checked(lowering: str | Lowering) -> Lowering:
    if isinstance(lowering, str):
        one_of("lowering", lowering, ("auto", *lowerings.NAMES))
        lowering = Lowering(lowering, lowering, lowering)
    for name in lowering.names:
        one_of("lowering", name, lowerings.NAMES)
    at_least("lowering.images", lowering.images, 0)
    return lowering


@functools.cache
def table() -> dict:
    """Reads `lowerings.json`, a dict from `section` to {hardware, date, layers}.

    `layers` maps the key of a layer to the fields of its `Lowering`.
    """
    file = resources.files("sparsefl_jax.models").joinpath("lowerings.json")
    return json.loads(file.read_text())


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


def section(dtype: str) -> str:
    """Returns the section of the table for a dtype.

    Example:
      >>> section("float32"), section("bfloat16")
      ('cpu', 'cpu bfloat16')
    """
    return "cpu" if dtype == "float32" else f"cpu {dtype}"


@functools.cache
def choose(layer: Layer, platform: str, dtype: str = "float32") -> Lowering:
    """Returns the fastest measured lowering of a layer, or of the most similar one.

    Accelerators use one form for all layers, which `programs.form` takes from whole
    programs.

    Args:
      layer: the shape of the convolution.
      platform: 'cpu', 'gpu' or 'tpu'.
      dtype: 'float32' or 'bfloat16'.

    Example:
      >>> choose(Layer(32, 8, 8, 16, 16, 1), "cpu").forward
      'patches'
    """
    if platform != "cpu":
        form = programs.form(platform)
        return Lowering(form, form, form)
    measured = table().get(section(dtype), {}).get("layers", {})
    if layer.key in measured:
        return Lowering(*measured[layer.key])
    near = min(measured, key=lambda key: _distance(layer, parse(key)), default=None)
    if near and _distance(layer, parse(near)) < math.log(16):
        lowering, same = Lowering(*measured[near]), layer[1:] == parse(near)[1:]
        return lowering if same else lowering._replace(images=0)
    if layer.size == 1:
        return Lowering("patches", "patches", "patches")
    # A valid convolution's canonical input gradient also computes the padded border.
    keeps_size = layer.stride == 1 and 2 * layer.pad >= layer.size - 1
    return Lowering("canonical", "canonical" if keeps_size else "patches", "canonical")


def parse(key: str) -> Layer:
    """Parses a key of the table.

    Example:
      >>> parse("64x12x12x20 5x5x50 s1 p0") == Layer(64, 12, 12, 20, 50, 5, 1, 0)
      True
    """
    image, kernel, stride, pad = key.split()
    batch, height, width, inputs = map(int, image.split("x"))
    size, _, outputs = map(int, kernel.split("x"))
    return Layer(
        batch, height, width, inputs, outputs, size, int(stride[1:]), int(pad[1:])
    )


def _distance(a: Layer, b: Layer) -> float:
    """Sums the log ratios of two shapes; infinite if kernel, stride or pad differ."""
    if a[5:] != b[5:]:
        return math.inf
    batch, *ratios = (abs(math.log(m / n)) for m, n in zip(a[:5], b[:5], strict=True))
    # The batch matters least, but far from it a form may take too much memory.
    return batch / 2 + sum(ratios) if batch < math.log(16) else math.inf


def available(layer: Layer, lowering: Lowering) -> Lowering:
    """Replaces forms that do not exist for a layer's shape.

    1x1 kernels have only `plain` and `patches`; strided ones have no Winograd form and
    few gradients. `images` becomes the divisor of the batch that is nearest to it.
    """
    if layer.size == 1:
        names = ("plain" if n == "plain" else "patches" for n in lowering.names)
        return Lowering(*names)
    forward, input_grad, weight_grad = lowering.names
    if layer.stride > 1:  # gradients of the other forms would work on a dilated g
        forward = "canonical" if forward.startswith("winograd") else forward
        input_grad = "plain" if input_grad == "plain" else "patches"
        weight_grad = "plain" if weight_grad == "plain" else "patches"
    if layer.pad >= layer.size and input_grad != "plain":
        input_grad = "patches"
    images = _divisor(layer.batch, lowering.images) if lowering.images else 0
    images = images if images < layer.batch else 0
    return Lowering(forward, input_grad, weight_grad, images)


def _divisor(number: int, wanted: int) -> int:
    """Returns the divisor of `number` whose ratio to `wanted` is nearest to one."""
    divisors = (n for n in range(1, number + 1) if number % n == 0)
    return min(divisors, key=lambda n: abs(math.log(n / wanted)))


@functools.cache
def _convolution(stride: int, pad: int, names: tuple[str, str, str]):
    forward_name, input_grad, weight_grad = names

    def forward(x, w):
        return lowerings.forward(forward_name, x, w, stride, pad)

    def backward(residual, g):
        x, w = residual
        dx = lowerings.input_grad(input_grad, x, g, w, stride, pad)
        return dx, lowerings.weight_grad(weight_grad, x, g, w, stride, pad)

    # The forward rule must not call `conv`, or else jvp of grad fails.
    conv = jax.custom_vjp(forward)
    conv.defvjp(lambda x, w: (forward(x, w), (x, w)), backward)
    return conv
