"""Reads images of files as one array: of one mode and one size, converted if asked."""

import contextlib
from collections import Counter
from typing import Any

import numpy as np
from tqdm import tqdm

from sparsefl_jax.core.check import UserError, blame, check
from sparsefl_jax.core.formats import some
from sparsefl_jax.core.types import Count

MODES = ("L", "RGB", "RGBA")
_ALIKE = {"L", "RGB"}, {"RGBA"}  # modes that become one unasked
_LOSSLESS = {"1": "L", "P": "RGB"}  # Pillow's modes that are converted unasked


def read(rows: Any, column: str, title: str, *, mode=None, size=()) -> np.ndarray:
    """Decodes images, with a progress bar on a terminal.

    Bits, palettes, and grey images among coloured ones are converted without loss. Any
    other difference is refused, with the modes and sizes that were found, until `mode`
    or `size` says what is wanted.

    Args:
      rows: a `datasets.Dataset`.
      column: of images in files.
      title: on the progress bar.
      mode: a name in `MODES`, to which Pillow converts all images; it drops what is
        transparent. 16 bits are divided by 256 first. None for that of the files.
      size: `(H, W)`, to which all images are resized by bilinear interpolation; `()`
        for that of the files.

    Returns:
      [n, H, W, C] uint8.

    Raises:
      ValueError: modes or sizes differ, or a file, which is named, cannot be read.
    """
    from datasets import Image

    check("image.mode", mode, (*MODES, None))
    check("image.size", size, tuple[Count, ...])
    if len(size) not in (0, 2):
        raise UserError(f"image.size={size}, expected (height, width)")
    coded = rows.select_columns([column]).cast_column(column, Image(decode=False))
    images, modes, sizes = np.zeros(0, np.uint8), Counter(), Counter()
    for i, row in enumerate(tqdm(coded, title, unit=" samples", disable=None)):
        file = row[column] or {}
        with blame(f"row {i}: {file.get('path') or repr(column)}"):
            if not file:
                raise UserError("there is none")
            image = Image().decode_example(file)
            image = image.convert(_LOSSLESS.get(image.mode, image.mode))
            modes[image.mode] += 1
            sizes[image.size[::-1]] += 1
            pixels = _pixels(image, mode, size)
            if not i:
                images = np.empty((len(coded), *pixels.shape), np.uint8)
        if (images.shape[-1], pixels.shape[-1]) == (1, 3):
            images = np.repeat(images, 3, axis=-1)
        with contextlib.suppress(ValueError):  # of another shape: it is refused below
            images[i] = pixels
    alike = any(set(modes) <= kinds for kinds in _ALIKE)
    if not (mode or alike) or len(sizes) > 1 and not size:
        found = [f"{name} ({n})" for name, n in modes.most_common()]
        found += [f"{h} x {w} ({n})" for (h, w), n in sizes.most_common()]
        wanted = "expected one mode and one size: set image.mode, image.size"
        raise UserError(f"images are {some(found)}, {wanted}")
    return images


def _pixels(image: Any, mode: str | None, size: tuple[int, ...]) -> np.ndarray:
    """Returns an image of Pillow as [H, W, C] uint8."""
    from PIL import Image

    if mode and image.mode.startswith("I"):  # Pillow would clip at 255
        image = Image.fromarray((np.asarray(image) // 256).astype(np.uint8))
    image = image.convert(mode) if mode else image
    image = image.resize(size[::-1], Image.Resampling.BILINEAR) if size else image
    return np.asarray(image, np.uint8).reshape(image.height, image.width, -1)
