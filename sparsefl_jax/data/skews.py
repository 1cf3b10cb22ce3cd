"""Partitions that vary one property of the clients: their sizes, or their classes.

Sources: `quantity` is the quantity skew of NIID-Bench (Li et al., ICDE 2022,
arXiv:2102.02079); `pathological` is the partition of FedDST (Bibikar et al., AAAI 2022,
arXiv:2112.09824), which FLASH's Table 9 uses.
"""

import numpy as np
from numpy.typing import ArrayLike

from sparsefl_jax.core.validate import in_range, whole
from sparsefl_jax.data.cuts import by_class, checked_labels


def quantity(
    labels: ArrayLike,
    num_clients: int,
    *,
    seed: int,
    alpha: float = 0.5,
    min_samples: int = 1,
) -> list[np.ndarray]:
    """Gives clients sizes drawn from Dir(alpha), and labels at random.

    Every client gets `min_samples` shuffled samples; one draw of Dir(alpha) divides the
    rest. NIID-Bench draws all samples this way, again and again until the smallest
    client has 10, which may never happen with many clients.

    Args:
      labels: [n] integers.
      num_clients: N, at most n / min_samples.
      seed: an integer; equal seeds give equal splits.
      alpha: the concentration, (0, 1e100]; small values give few clients most samples.
      min_samples: the least number of samples of a client.

    Returns:
      A list of `num_clients` integer arrays that together hold every index once.

    Raises:
      ValueError: an argument is out of range, or there are too few samples.

    Example:
      >>> parts = quantity(np.zeros(100, np.int32), 4, seed=0, min_samples=5)
      >>> sizes = [len(part) for part in parts]
      >>> sum(sizes), min(sizes) >= 5, max(sizes) > 25
      (100, True, True)
    """
    labels = checked_labels(labels, num_clients, min_samples)
    in_range("alpha", alpha, "(0, 1e100]")  # a sum of draws must not overflow
    rng = np.random.default_rng(seed)
    rest = len(labels) - num_clients * min_samples
    shares = rng.dirichlet(np.full(num_clients, alpha))
    # Rounding the ends instead of the sizes keeps the sum exact.
    ends = np.rint(np.cumsum(shares)[:-1] * rest).astype(np.int64)
    ends = ends + min_samples * np.arange(1, num_clients)
    return np.split(rng.permutation(len(labels)), ends)


def pathological(
    labels: ArrayLike,
    num_clients: int,
    *,
    seed: int,
    classes_per_client: int = 2,
    samples_per_class: int | None = None,
) -> list[np.ndarray]:
    """Gives each client exactly C random classes.

    One after another, clients take the C classes that the fewest clients hold so far,
    with ties broken at random, so that all classes are held equally often, up to one.
    The shuffled samples of a class are divided equally among its clients. In contrast,
    `shards` deals neighbouring classes to every client, whatever the seed, and a chunk
    there may hold a further class where classes differ in size.

    Args:
      labels: [n] integers.
      num_clients: N; N * C is at least the number of classes.
      seed: an integer; equal seeds give equal splits.
      classes_per_client: C, from 1 to the number of classes.
      samples_per_class: the samples that a client gets of each of its classes; the
        other samples are left out. None deals out all samples. FedDST has 20, with 400
        clients and 2 classes each.

    Returns:
      A list of `num_clients` integer arrays that hold no index twice, and without
      `samples_per_class` every index once.

    Raises:
      ValueError: an argument is out of range, or a class has too few samples.

    Example:
      >>> labels = np.repeat(np.arange(10), 50)
      >>> parts = pathological(labels, 20, seed=0, samples_per_class=10)
      >>> {tuple(np.unique(labels[p], return_counts=True)[1].tolist()) for p in parts}
      {(10, 10)}
    """
    labels = checked_labels(labels, num_clients)
    rng = np.random.default_rng(seed)
    stacks = [stack for stack in by_class(labels, rng) if len(stack)]
    whole("classes_per_client", classes_per_client, 1, len(stacks))
    if num_clients * classes_per_client < len(stacks):
        raise ValueError(
            f"classes_per_client={classes_per_client}, expected at least "
            f"{-(-len(stacks) // num_clients)} so that num_clients={num_clients} hold "
            f"all {len(stacks)} classes"
        )
    if samples_per_class is not None:
        whole("samples_per_class", samples_per_class, 1)
    each = int(samples_per_class or 1)
    holders = _holders(rng, num_clients, len(stacks), classes_per_client)
    parts = [[] for _ in range(num_clients)]
    for stack, clients in zip(stacks, holders, strict=True):
        if each * len(clients) > len(stack):
            raise ValueError(
                f"num_clients={num_clients} with classes_per_client="
                f"{classes_per_client} need {each * len(clients)} samples of class "
                f"{labels[stack[0]]}; there are {len(stack)}"
            )
        stack = stack if samples_per_class is None else stack[: each * len(clients)]
        for client, rows in zip(
            clients, np.array_split(stack, len(clients)), strict=True
        ):
            parts[client].append(rows)
    return [np.concatenate(part) for part in parts]


def _holders(rng, num_clients, num_classes, classes_per_client) -> list[list[int]]:
    """Draws the clients that hold each class, equally many up to one."""
    holders = [[] for _ in range(num_classes)]
    for client in range(num_clients):
        order = np.lexsort((rng.random(num_classes), [len(h) for h in holders]))
        for c in order[: int(classes_per_client)]:
            holders[c].append(client)
    return holders
