"""Feature shifts: images that differ from client to client in how they look.

A shift is applied once on the host, to a client's training, validation and test samples
alike. It follows from the client's number, the seed and the image; noise also from the
split and the image's place among the client's. The labels stay.

Sources: `rotation` is Rotated MNIST of IFCA (Ghosh et al., NeurIPS 2020,
arXiv:2006.04088). The corruptions are three of Hendrycks and Dietterich (ICLR 2019,
arXiv:1903.12261), with a strength for each client as NIID-Bench (Li et al., ICDE 2022,
arXiv:2102.02079) has it for noise.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sparsefl_jax.core.validate import in_range, one_of, unread

_CORRUPTIONS = ("noise", "contrast", "blur")
FEATURE_SHIFTS = {
    "rotation": "client i's images are turned left by 90 degrees, i mod 4 times",
    "noise": "Gaussian noise of standard deviation u on the scale 0 to 1",
    "contrast": "differences from each image's mean are multiplied by 1 - u",
    "blur": "a Gaussian blur of 2 u pixels",
    "corruption": "noise, contrast or blur for client i, by i mod 3",
}


class Shift(NamedTuple):
    """How the images of each client are shifted."""

    name: str
    strength: float  # the largest u of a client
    seed: int

    def of(self, images: np.ndarray, client: int, split: int = 0) -> np.ndarray:
        """Returns a client's images [n, H, W, C], shifted, in the same dtype.

        Args:
          images: [n, H, W, C] uint8 or float32. Floats are taken to be on the scale
            0 to 1, but they are not clipped.
          client: the client's number.
          split: 0 for samples of the training set, 1 for the test set, so that noise
            differs.

        Example:
          >>> image = np.array([[1, 2], [3, 4]], np.uint8).reshape(1, 2, 2, 1)
          >>> Shift("rotation", 0.5, 0).of(image, 1)[0, :, :, 0].tolist()
          [[2, 4], [1, 3]]
        """
        if self.name == "rotation":
            return np.rot90(images, client % 4, axes=(1, 2))
        name = _CORRUPTIONS[client % 3] if self.name == "corruption" else self.name
        rng = np.random.default_rng([self.seed, 4, client, split])
        return _corrupted(images, name, self.strength_of(client), rng)

    def strength_of(self, client: int) -> float:
        """Returns a client's strength u, drawn uniformly from 0 to `strength`."""
        # Children 1 and 2 of the seed draw the splits, see `federated.federate`.
        return np.random.default_rng([self.seed, 3, client]).uniform(0, self.strength)


def make_shift(
    name: str,
    strength: float | None,
    *,
    seed: int,
    shape: Sequence[int],
    test_split: str,
) -> Shift:
    """Checks a feature shift against the samples.

    Args:
      name: one of `FEATURE_SHIFTS`.
      strength: the largest strength of a client, (0, 1]; None for 0.5, and for
        "rotation", which has none.
      seed: an integer; equal seeds give equal shifts.
      shape: of the samples, without their number.
      test_split: as in `federate`.

    Returns:
      A `Shift`.

    Raises:
      ValueError: an argument is unknown or out of range, the samples are no images, or
        the test samples belong to no client.

    Example:
      >>> make_shift("blur", None, seed=0, shape=(28, 28, 1), test_split="within")
      Shift(name='blur', strength=0.5, seed=0)
    """
    one_of("feature_shift", name, FEATURE_SHIFTS)
    if name == "rotation" and strength is not None:
        raise unread(f"shift_strength={strength}", "feature_shift='rotation'")
    strength = 0.5 if strength is None else strength
    in_range("shift_strength", strength, "(0, 1]")
    kind = "square images" if name == "rotation" else "images"
    if len(shape) != 3 or name == "rotation" and shape[0] != shape[1]:
        raise ValueError(
            f"feature_shift={name!r} needs {kind}; samples have shape {tuple(shape)}"
        )
    if test_split == "pooled":
        raise ValueError(
            f"feature_shift={name!r} needs test samples that belong to clients; "
            "test_split='pooled', expected another"
        )
    return Shift(name, strength, seed)


def shift_parts(
    x: np.ndarray, y: np.ndarray, parts: list[np.ndarray], shift: Shift, split: int
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Shifts every client's samples.

    Args:
      x: [n, H, W, C].
      y: [n].
      parts: the rows of each client. A row of two clients becomes two samples; a row of
        no client is left out.
      shift: from `make_shift`.
      split: see `Shift.of`.

    Returns:
      `(x, y, parts)`, with one client's samples after another's.

    Example:
      >>> x = np.arange(8, dtype=np.uint8).reshape(2, 2, 2, 1)
      >>> shift = Shift("rotation", 0.5, 0)
      >>> x, y, parts = shift_parts(x, np.array([5, 6]), [[1], [0, 1]], shift, 0)
      >>> y.tolist(), [part.tolist() for part in parts], x[2].ravel().tolist()
      ([6, 5, 6], [[0], [1, 2]], [5, 7, 4, 6])
    """
    rows = np.concatenate(parts)
    ends = np.cumsum([len(part) for part in parts])
    parts = np.split(np.arange(len(rows)), ends[:-1])
    x, y = x[rows], y[rows]
    for client, part in enumerate(parts):
        x[part] = shift.of(x[part], client, split)
    return x, y, parts


def _corrupted(images, name, strength, rng):
    """Applies one of `_CORRUPTIONS` to images [n, H, W, C]; keeps their dtype."""
    x = images.astype(np.float32) / (255 if images.dtype == np.uint8 else 1)
    if name == "noise":
        x = x + strength * rng.standard_normal(x.shape, np.float32)
    elif name == "contrast":
        mean = x.mean(axis=(1, 2), keepdims=True)
        x = mean + (1 - strength) * (x - mean)
    else:
        from scipy.ndimage import gaussian_filter

        x = gaussian_filter(x, 2 * strength, mode="nearest", axes=(1, 2))
    if images.dtype == np.uint8:
        x = np.clip(np.rint(255 * x), 0, 255)
    return x.astype(images.dtype)
