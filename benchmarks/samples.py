"""Random samples for benchmarks, drawn by NumPy so that any peer can draw the same."""

import numpy as np

_ROWS = 60_000  # the most distinct samples; further clients share them


def draw(clients: int, samples: int, shape: tuple[int, ...], classes: int):
    """Draws samples and labels from seed 0.

    Args:
      clients: N.
      samples: M, the samples of every client.
      shape: the shape of a sample; (H, W, C) gives uint8 images, all others float32.
      classes: the number of labels.

    Returns:
      x [n, ...], y [n] int64, and each client's rows of them [N, M] int64.

    Example:
      >>> x, y, rows = draw(3, 2, (4, 4, 1), 10)
      >>> x.shape, y.shape, rows.tolist()
      ((6, 4, 4, 1), (6,), [[0, 1], [2, 3], [4, 5]])
    """
    rng, total = np.random.default_rng(0), clients * samples
    count = min(total, _ROWS)
    if len(shape) == 3:
        x = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
    else:
        x = rng.normal(size=(count, *shape)).astype(np.float32)
    y = rng.integers(0, classes, count)
    return x, y, np.arange(total).reshape(clients, samples) % count
