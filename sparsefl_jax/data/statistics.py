"""Statistics of a partition: clients' sizes, the entropy of labels, the largest."""

import numpy as np
from numpy.typing import ArrayLike


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
