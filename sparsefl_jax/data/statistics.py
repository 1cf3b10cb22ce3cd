"""Statistics of samples, and of a partition: sizes, entropy of labels, the largest."""

import math

import numpy as np
from numpy.typing import ArrayLike


def moments(x: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns the mean and the deviation of each channel, [C] each.

    The deviation of a constant counts as 1.

    Args:
      x: [..., C]; uint8 images [n, H, W, C] count on the scale 0 to 1.

    Example:
      >>> moments(np.array([[1.0, 5.0], [3.0, 5.0]]))
      ((2.0, 5.0), (1.0, 1.0))
    """
    if x.dtype == np.uint8:
        levels, counts = np.arange(256), 0
        # bincount converts to int64, so it sees a part of the images at a time.
        for images in np.array_split(x, 1 + x.size // 2**24):
            channels = np.moveaxis(images, 3, 0)
            counts += np.stack([np.bincount(c.ravel(), None, 256) for c in channels])
        # Integers, since BLAS rounds differently elsewhere, where a run may continue.
        n, sums = x[..., 0].size, np.stack([counts @ levels, counts @ levels**2], 1)
        mean = [first / (255 * n) for first, _ in sums.tolist()]
        std = [math.sqrt(n * b - a * a) / (255 * n) for a, b in sums.tolist()]
    else:
        axes = tuple(range(x.ndim - 1))
        mean, std = x.mean(axes, dtype=np.float64), x.std(axes, dtype=np.float64)
    return tuple(map(float, mean)), tuple(float(s) if s > 0 else 1.0 for s in std)


def partition_statistics(counts: ArrayLike) -> dict:
    """Summarises how evenly samples and labels are divided among clients.

    Args:
      counts: [N, classes], the training samples of each client and class, from
        `partition_counts`. Unseen clients have none and are left out.

    Returns:
      Plain Python numbers: `number` of clients; `train`, the training samples of a
      client, as `min`, `median` and `max`; `entropy` of a client's labels in bits, as
      `mean`, `min` and `max`; `largest_share`, the largest client's share of all.

    Example:
      >>> partition_statistics([[4, 4], [2, 0]])["entropy"]
      {'mean': 0.5, 'min': 0.0, 'max': 1.0}
    """
    counts = np.asarray(counts)
    counts = counts[counts.any(axis=1)]
    sizes = counts.sum(axis=1)
    shares = counts / sizes[:, None]
    # 0 log 0 is 0, and adding 0.0 turns the -0.0 of a single class into 0.0.
    entropy = -(shares * np.log2(np.where(counts, shares, 1))).sum(axis=1) + 0.0

    def of(values, *names):
        return {name: getattr(np, name)(values).item() for name in names}

    return {
        "number": len(counts),
        "train": of(sizes, "min", "median", "max"),
        "entropy": of(entropy, "mean", "min", "max"),
        "largest_share": float(sizes.max() / sizes.sum()),
    }
