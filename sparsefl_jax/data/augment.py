"""Preprocessing: crops, flips, scales and normalises samples for a network.

As in torchvision, images are padded with pixel 0 before they are normalised. Cutout is
that of DeVries and Taylor, 2017, https://arxiv.org/abs/1708.04552. One gather does both
the crop and the flip. On a CPU it is 25 times as fast as a slice for each image, and 5
times as fast as products with one-hot matrices.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core.algorithm import method
from sparsefl_jax.core.check import UserError, check
from sparsefl_jax.core.types import Array, Key

AUGMENTATIONS = ("crop", "flip", "cutout")
_PAD = 4  # pixels on each side
_CUTOUT = 16  # pixels


@method
def make_preprocess(
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    *,
    scale: float = 255.0,
    augment: Sequence[str] = (),
    scramble: bool = False,
    tokens: bool = False,
) -> Callable:
    """Returns the function that turns a batch of samples into the network's input.

    Args:
      mean: the mean of each channel, on the scale 0 to 1; None subtracts nothing.
      std: the standard deviation of each channel, on the scale 0 to 1; None divides by
        nothing.
      scale: the divisor of uint8 pixels, 1 for none; nothing else is scaled.
      augment: names in `AUGMENTATIONS`, applied in training only. "crop" pads each
        side with 4 pixels of 0 and cuts out the original size at a random place; "flip"
        mirrors an image left to right with probability 1/2; "cutout" sets a square of
        16 x 16 pixels round a random one to 0 after the normalisation, as much as lies
        inside.
      scramble: reads an image's memory [H, W, C] as if it were [C, H, W]. SpaFL's
        official CIFAR-10 code makes this mistake; set it to reproduce their figures.

      tokens: leaves integers as they are, for a network that looks them up; nothing
        else may be set.

    Returns:
      `preprocess(key, x, train) -> x`. It takes [B, H, W, C] or [B, D] in uint8, int32
      or float32 and returns float32 of the same shape, or int32 with `tokens`. `train`
      is static; the key is used only in training.

    Raises:
      ValueError: an argument is unknown or out of range; or, from `preprocess`,
        `augment` or `scramble` meets samples that are not images.

    Example:
      >>> preprocess = make_preprocess((0.5,), (0.5,))
      >>> x = jnp.array([0, 255], jnp.uint8).reshape(1, 1, 2, 1)
      >>> preprocess(None, x, False).ravel().tolist()
      [-1.0, 1.0]
    """
    if tokens:
        if mean is not None or std is not None or augment or scramble:
            raise UserError("tokens=True, expected no other argument with it")
        return lambda key, x, train: x.astype(jnp.int32)
    for name in augment:
        check("augment", name, AUGMENTATIONS)
    check("scale", scale, "(0, inf)")
    if std is not None and min(std) <= 0:
        raise UserError(f"std={std}, expected every entry above 0")
    shift = None if mean is None else np.asarray(mean, np.float32)
    divisor = None if std is None else np.asarray(std, np.float32)

    def preprocess(key: Key | None, x: Array, train: bool) -> Array:
        if x.ndim != 4 and (scramble or train and augment):
            raise UserError(
                f"{augment=}, {scramble=} needs images, x has {x.ndim} axes"
            )
        square = None
        if train and "cutout" in augment:
            key, square_key = jax.random.split(key)
            square = _squares(square_key, x.shape)
        if train and set(augment) & {"crop", "flip"}:
            x = _move(key, x, _PAD * ("crop" in augment), "flip" in augment)
        if scramble:
            batch, height, width, channels = x.shape
            x = x.reshape(batch, channels, height, width).transpose(0, 2, 3, 1)
        scaled = x.dtype == jnp.uint8 and scale != 1
        x = x.astype(jnp.float32)
        leading = tuple(range(x.ndim - 1))
        x = x / jnp.float32(scale) if scaled else x
        x = x if shift is None else x - jnp.expand_dims(shift, leading)
        x = x if divisor is None else x / jnp.expand_dims(divisor, leading)
        return x if square is None else jnp.where(square, 0.0, x)

    return preprocess


def _squares(key: Key, shape: tuple[int, ...]) -> Array:
    """Marks the pixels that cutout drops, bool [B, H, W, 1]."""
    num, height, width, _ = shape
    keys = jax.random.split(key)

    def near(key, size):  # from half the side before the centre, which is in the image
        centre = jax.random.randint(key, (num, 1), 0, size, jnp.int32)
        start = centre - _CUTOUT // 2
        place = jnp.arange(size, dtype=jnp.int32)[None]
        return (place >= start) & (place < start + _CUTOUT)

    rows, columns = near(keys[0], height), near(keys[1], width)
    return (rows[:, :, None] & columns[:, None, :])[..., None]


def _move(key, x, pad, flip):
    """Shifts each image of x [B, H, W, C] by up to `pad` pixels and mirrors half."""
    num, height, width, _ = x.shape
    keys = jax.random.split(key, 3)
    offsets = (num, 1)
    down = jax.random.randint(keys[0], offsets, -pad, pad + 1, jnp.int32)
    right = jax.random.randint(keys[1], offsets, -pad, pad + 1, jnp.int32)
    rows = jnp.arange(height, dtype=jnp.int32)[None] + down
    columns = jnp.arange(width, dtype=jnp.int32)[None]
    if flip:
        mirror = jax.random.bernoulli(keys[2], 0.5, offsets)
        columns = jnp.where(mirror, width - 1 - columns, columns)
    columns = columns + right
    rows, columns = rows[:, :, None], columns[:, None, :]
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    image = jnp.arange(num, dtype=jnp.int32)[:, None, None]
    rows, columns = jnp.clip(rows, 0, height - 1), jnp.clip(columns, 0, width - 1)
    return jnp.where(inside[..., None], x[image, rows, columns], jnp.zeros((), x.dtype))
