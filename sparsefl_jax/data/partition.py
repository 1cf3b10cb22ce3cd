"""Partitions: seeded splits of a labelled data set over clients.

Each partitioner is a pure function `(labels, num_clients, *, seed, ...)` that returns a
list of index arrays, one per client. `federated.federate` passes `labels_test` and
`users` to a partitioner that has such arguments. Everything is NumPy on the host.

Sources: `dirichlet` as in SpaFL (Kim et al., NeurIPS 2024, arXiv:2406.00431), `lda` as
in FLASH (Babakniya et al., TMLR 2023), `shards` as in FedSparsify (Stripelis et al.
2022, arXiv:2204.12430). `quantity` is the quantity skew of NIID-Bench (Li et al., ICDE
2022, arXiv:2102.02079); `pathological` is the partition of FedDST (Bibikar et al., AAAI
2022, arXiv:2112.09824), which FLASH's Table 9 uses.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from sparsefl_jax.core.check import UserError, blame, check, integer
from sparsefl_jax.data import cuts
from sparsefl_jax.data.cuts import Parts

_MAX_DRAWS = 200


def iid(labels: ArrayLike, num_clients: int, *, seed: int) -> Parts:
    """Divides shuffled samples evenly; the sizes of clients differ by at most one.

    Args:
      labels: [n] integers.
      num_clients: N, at most n.
      seed: an integer; equal seeds give equal splits.

    Returns:
      A list of `num_clients` integer arrays that together hold every index once.

    Raises:
      ValueError: there are more clients than samples.

    Example:
      >>> [len(part) for part in iid(np.zeros(7, np.int32), 3, seed=0)]
      [3, 2, 2]
    """
    labels = cuts.check_labels(labels, num_clients)
    order = np.random.default_rng(seed).permutation(len(labels))
    return np.array_split(order, num_clients)


def quantity(
    labels: ArrayLike,
    num_clients: int,
    *,
    seed: int,
    alpha: float = 0.5,
    min_samples: int = 1,
) -> Parts:
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
    labels = cuts.check_labels(labels, num_clients, min_samples)
    check("alpha", alpha, "(0, 1e100]")  # a sum of draws must not overflow
    rng = np.random.default_rng(seed)
    rest = len(labels) - num_clients * min_samples
    shares = rng.dirichlet(np.full(num_clients, alpha))
    # Rounding the ends instead of the sizes keeps the sum exact.
    ends = np.rint(np.cumsum(shares)[:-1] * rest).astype(np.int64)
    ends = ends + min_samples * np.arange(1, num_clients)
    return np.split(rng.permutation(len(labels)), ends)


def dirichlet(
    labels: ArrayLike,
    num_clients: int,
    *,
    seed: int,
    alpha: float = 0.1,
    min_samples: int = 10,
    balanced: bool = False,
    labels_test: ArrayLike | None = None,
) -> Parts:
    """Splits each class in proportions drawn from Dir(alpha), so sizes are uneven.

    Cumulative counts are rounded down, as in SpaFL's code, so that on average the last
    client has one sample of each class more than the first: of ten classes 2 % of 600
    samples a client, and a third of 30.

    All proportions are drawn again while a client has fewer than `min_samples` or, if
    `labels_test` is given, would have no test sample under the same proportions. After
    200 draws, samples move from the largest clients to those below the minimum, with a
    warning.

    Args:
      labels: [n] integers.
      num_clients: N.
      seed: an integer; equal seeds give equal splits.
      alpha: the concentration, (0, 1e100]; small values give few classes per client.
      min_samples: the least number of samples of a client.
      balanced: whether a client that holds n / num_clients samples gets no more.
      labels_test: [n_test] integers, the labels of the test set, or None.

    Returns:
      A list of `num_clients` integer arrays that together hold every index once.

    Raises:
      ValueError: an argument is out of range, or there are too few samples.

    Example:
      >>> labels = np.repeat(np.arange(10), 100)
      >>> parts = dirichlet(labels, 5, seed=0, alpha=0.5, min_samples=20)
      >>> sum(map(len, parts)), min(map(len, parts)) >= 20
      (1000, True)
    """
    labels = cuts.check_labels(labels, num_clients, min_samples)
    check("alpha", alpha, "(0, 1e100]")  # a sum of draws must not overflow
    rng = np.random.default_rng(seed)
    totals = np.bincount(labels)
    test = [] if labels_test is None else labels_test
    totals_test = np.bincount(test, minlength=len(totals))[: len(totals)]
    cap = len(labels) / num_clients if balanced else np.inf
    for _ in range(_MAX_DRAWS):
        ends = _draw_cuts(rng, totals, num_clients, alpha, cap)
        sizes = np.diff(ends, axis=1, prepend=0).sum(axis=0)
        ends_test = cuts.scale_cuts(ends, totals_test)
        sizes_test = np.diff(ends_test, axis=1, prepend=0).sum(axis=0)
        all_have_test = labels_test is None or sizes_test.min() > 0
        if sizes.min() >= min_samples and all_have_test:
            break
    return cuts.raise_to_minimum(cuts.cut_classes(labels, ends, rng), min_samples)


def lda(labels: ArrayLike, num_clients: int, *, seed: int, alpha: float = 1.0) -> Parts:
    """Fills clients of equal size from class mixtures drawn from Dir(alpha).

    Clients are filled one after another. Once a class is used up, its probability is 0,
    and the others gain 1e-5 each before renormalisation. So the first clients use up
    rare classes, which a warning tells; `dirichlet` spreads them.

    Args:
      labels: [n] integers.
      num_clients: N, at most n.
      seed: an integer; equal seeds give equal splits.
      alpha: the concentration, (0, 1e100]; small values give few classes per client.

    Returns:
      A list of `num_clients` integer arrays that together hold every index once; sizes
      differ by at most one.

    Raises:
      ValueError: an argument is out of range.

    Example:
      >>> labels = np.repeat(np.arange(10), 100)
      >>> [len(part) for part in lda(labels, 5, seed=0, alpha=0.1)]
      [200, 200, 200, 200, 200]
    """
    labels = cuts.check_labels(labels, num_clients)
    check("alpha", alpha, "(0, 1e100]")  # a sum of draws must not overflow
    rng = np.random.default_rng(seed)
    stacks = cuts.by_class(labels, rng)
    left = np.array([len(stack) for stack in stacks])
    quota, rest = divmod(len(labels), num_clients)
    mixtures = rng.dirichlet(np.full(len(stacks), alpha), num_clients)
    parts = []
    for client, mixture in enumerate(mixtures):
        counts = _sample_mixture(rng, mixture, left, quota + (client < rest))
        rows = [stacks[c][left[c] - n : left[c]] for c, n in enumerate(counts)]
        left = left - counts
        parts.append(np.concatenate(rows))
    _warn_of_rare(labels, parts)
    return parts


def shards(labels: ArrayLike, num_clients: int, *, seed: int = 0, k: int = 2) -> Parts:
    """Sorts by label, cuts num_clients * k chunks, and gives each client k classes.

    In order, each client takes the first k remaining chunks of distinct classes. The
    rule is deterministic: the seed changes nothing.

    Args:
      labels: [n] integers.
      num_clients: N; num_clients * k is at most n.
      seed: unused.
      k: the chunks of a client, from 1 to the number of classes.

    Returns:
      A list of `num_clients` integer arrays that together hold every index once.

    Raises:
      ValueError: an argument is out of range.

    Example:
      >>> labels = np.repeat(np.arange(10), 20)
      >>> [np.unique(labels[part]).tolist() for part in shards(labels, 10, k=2)][:3]
      [[0, 1], [0, 1], [2, 3]]
    """
    check("k", k, integer(1, len(np.unique(labels))))
    labels = cuts.check_labels(labels, num_clients, k)
    chunks = np.array_split(np.argsort(labels, kind="stable"), num_clients * k)
    parts = []
    for _ in range(num_clients):
        classes = [labels[chunk[0]] for chunk in chunks]
        _, first = np.unique(classes, return_index=True)
        again = ~np.isin(np.arange(len(classes)), first)
        taken = np.argsort(again, kind="stable")[:k]  # distinct classes first
        parts.append(np.concatenate([chunks[i] for i in taken]))
        chunks = [chunk for i, chunk in enumerate(chunks) if i not in taken]
    return parts


def pathological(
    labels: ArrayLike,
    num_clients: int,
    *,
    seed: int,
    classes_per_client: int = 2,
    samples_per_class: int | None = None,
) -> Parts:
    """Gives each client exactly C random classes.

    One after another, clients take the C classes that the fewest clients hold so far,
    with ties broken at random, so that all classes are held equally often, up to one.
    The shuffled samples of a class are divided equally among its clients. In contrast,
    `shards` gives neighbouring classes to every client, whatever the seed, and a chunk
    there may hold a further class where classes differ in size.

    Args:
      labels: [n] integers.
      num_clients: N; N * C is at least the number of classes.
      seed: an integer; equal seeds give equal splits.
      classes_per_client: C, from 1 to the number of classes.
      samples_per_class: the samples that a client gets of each of its classes; the
        other samples are left out. None divides all samples. FedDST has 20, with 400
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
    labels = cuts.check_labels(labels, num_clients)
    rng = np.random.default_rng(seed)
    stacks = [stack for stack in cuts.by_class(labels, rng) if len(stack)]
    check("classes_per_client", classes_per_client, integer(1, len(stacks)))
    if num_clients * classes_per_client < len(stacks):
        few = f"{num_clients=} with {classes_per_client=}"
        raise UserError(f"{few} do not hold all {len(stacks)} classes")
    check("samples_per_class", samples_per_class, integer(1) | None)
    each = int(samples_per_class or 1)
    holders = _holders(rng, num_clients, len(stacks), classes_per_client)
    parts = [[] for _ in range(num_clients)]
    for stack, clients in zip(stacks, holders, strict=True):
        if each * len(clients) > len(stack):
            need = f"{each * len(clients)} samples of class {labels[stack[0]]}"
            raise UserError(f"{num_clients=} need {need}; there are {len(stack)}")
        stack = stack if samples_per_class is None else stack[: each * len(clients)]
        pieces = np.array_split(stack, len(clients))
        for client, rows in zip(clients, pieces, strict=True):
            parts[client].append(rows)
    return [np.concatenate(part) for part in parts]


def natural(
    labels: ArrayLike,
    num_clients: int | None = None,
    *,
    users: ArrayLike | None,
    seed: int = 0,
    min_samples: int = 1,
) -> Parts:
    """Makes each user one client.

    Args:
      labels: [n] integers.
      num_clients: N; None takes every user, a smaller number draws users at random,
        with a warning.
      users: [n] integers, the user of each sample.
      seed: an integer; equal seeds draw equal users.
      min_samples: the least number of samples; users with fewer are left out.

    Returns:
      A list of integer arrays, in ascending order of user id.

    Raises:
      ValueError: the data set has no users, or too few.

    Example:
      >>> labels, users = np.zeros(5, np.int32), np.array([7, 5, 7, 5, 9])
      >>> [p.tolist() for p in natural(labels, users=users, min_samples=2)]
      [[1, 3], [0, 2]]
    """
    check("min_samples", min_samples, "[1, inf)")
    if users is None:
        raise UserError("partition='natural' needs a data set with users; it has none")
    if len(users) != len(labels):
        raise UserError(f"users has {len(users)} ids for {len(labels)} samples")
    ids, inverse, sizes = np.unique(users, return_inverse=True, return_counts=True)
    order = np.argsort(inverse, kind="stable")
    parts = np.split(order, np.cumsum(sizes)[:-1])
    parts = [part for part in parts if len(part) >= min_samples]
    num_clients = len(parts) if num_clients is None else num_clients
    if not 1 <= num_clients <= len(parts):
        told = f"users with {min_samples=}, expected 1 to {len(parts)}"
        raise UserError(f"{num_clients=} {told}, or 0 (in Python None) for all")
    if num_clients < len(parts):
        text = f"num_clients={num_clients} of {len(parts)} users take part, no others"
        warnings.warn(text, stacklevel=2)
    chosen = np.random.default_rng(seed).permutation(len(parts))[:num_clients]
    return [parts[i] for i in np.sort(chosen)]


def listed(
    labels: ArrayLike,
    num_clients: int | None = None,
    *,
    seed: int = 0,
    path: str | None = None,
) -> Mapping[str, ArrayLike]:
    r"""Gives clients the rows that a file lists.

    Args:
      labels: [n], unused.
      num_clients: N, or None, by the file.
      seed: unused.
      path: a .json file with the rows of each client, `{"ward 3": [0, 4], ...}`, or a
        .csv file with the columns `client` and `sample`, a row of the training samples
        in each line.

    Returns:
      The rows by client, in the order of the file.

    Raises:
      ValueError: the file is not so.

    Example:
      >>> import tempfile
      >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
      ...     _ = file.write("client,sample\na,0\nb,1\na,2")
      ...     file.flush()
      ...     {k: v.tolist() for k, v in listed([0, 1, 0], path=file.name).items()}
      {'a': [0, 2], 'b': [1]}
    """
    check("partition.path: suffix", Path(path or "").suffix, (".json", ".csv"))
    with blame(f"partition.path={path!r}"):
        if path.endswith(".json"):
            content = Path(path).read_bytes()
            return msgspec.json.decode(content, type=dict[str, list[int]])
        import pandas as pd

        table = pd.read_csv(path, dtype={"client": str})
        if list(table) != ["client", "sample"] or table.isna().any(axis=None):
            expected = "expected ['client', 'sample'] without gaps"
            raise UserError(f"columns {list(table)}, {expected}")
        return dict(iter(table.groupby("client", sort=False)["sample"]))


PARTITIONERS = {
    f.__name__: f
    for f in (iid, quantity, dirichlet, lda, shards, pathological, natural, listed)
}
BY_CLASS = ("dirichlet", "lda", "shards", "pathological")


def _draw_cuts(rng, totals, num_clients, alpha, cap):
    """Draws the cuts of each class; clients that hold `cap` samples get no more."""
    cuts, held = [], np.zeros(num_clients, np.int64)
    for total in totals:
        room = held < cap if (held < cap).any() else np.ones(num_clients, bool)
        share = rng.dirichlet(np.full(num_clients, alpha)) * room
        # All clients with room can have drawn a share of 0.
        share = share if share.sum() > 0 else room.astype(float)
        cut = (np.cumsum(share / share.sum()) * total).astype(np.int64)
        # A sum of floats can end just below 1 and would lose the last sample.
        cut[-1] = total
        held = held + np.diff(cut, prepend=0)
        cuts.append(cut)
    return np.stack(cuts)


def _warn_of_rare(labels, parts) -> None:
    """Says who holds classes below half the mean size, if less than half could."""
    classes, sizes = np.unique(labels, return_counts=True)
    held = [np.unique(labels[part]) for part in parts]
    told = []
    for c, size in zip(classes, sizes, strict=True):
        whom = [i for i, own in enumerate(held) if c in own]
        if 2 * size < sizes.mean() and 2 * len(whom) < min(size, len(parts)):
            others = f" and {len(whom) - 1} others" * (len(whom) > 1)
            told.append(f"{size} of class {c} to client {whom[0]}{others}")
    if told:
        more = f"; so {len(told) - 5} more classes" if len(told) > 5 else ""
        text = f"lda gave all {'; '.join(told[:5])}{more}; 'dirichlet' spreads them"
        warnings.warn(text, stacklevel=3)


def _holders(rng, num_clients, num_classes, classes_per_client) -> list[list[int]]:
    """Draws the clients that hold each class, equally many up to one."""
    holders = [[] for _ in range(num_classes)]
    for client in range(num_clients):
        order = np.lexsort((rng.random(num_classes), [len(h) for h in holders]))
        for c in order[: int(classes_per_client)]:
            holders[c].append(client)
    return holders


def _sample_mixture(rng, mixture, left, size):
    """Draws `size` samples without replacement; returns the counts of each class.

    Samples are drawn in runs that end when a class is used up, which has the same
    distribution as drawing one by one.
    """
    counts = np.zeros_like(left)
    while (need := size - counts.sum()) > 0:
        room = left - counts
        gain = 1e-5 * (room == 0).any()
        p = np.where(room > 0, mixture + gain, 0.0)
        drawn = rng.choice(len(p), need, p=p / p.sum())
        run = np.cumsum(np.eye(len(p), dtype=np.int64)[drawn], axis=0)
        over = np.flatnonzero((run > room[None]).any(axis=1))
        end = over[0] if len(over) else need
        counts = counts + (run[end - 1] if end else 0)
    return counts
