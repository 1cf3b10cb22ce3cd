"""The arithmetic of partitions: classes cut at cumulative counts.

`cuts` [classes, N] int64 holds, for each class and client, how many samples of the
class go to the clients up to and including this one.
"""

import warnings

import numpy as np
from numpy.typing import ArrayLike

from sparsefl_jax.core.check import UserError, check, integer


def checked_labels(
    labels: ArrayLike, num_clients: int, min_samples: int = 1
) -> np.ndarray:
    """Returns the labels as an array [n].

    Raises:
      ValueError: there are too few samples for the clients, or no number of clients.
    """
    labels = np.asarray(labels)
    check("min_samples", min_samples, "[1, inf)")
    check("num_clients", num_clients, integer(1))
    if num_clients * min_samples > len(labels):
        raise UserError(
            f"num_clients={num_clients} with at least {min_samples} samples each; "
            f"there are {len(labels)} samples"
        )
    return labels


def draw_cuts(
    rng: np.random.Generator,
    totals: np.ndarray,
    num_clients: int,
    alpha: float,
    cap: float,
) -> np.ndarray:
    """Draws the cuts of each class from Dir(alpha).

    Args:
      rng: a NumPy generator.
      totals: [classes] integers, the samples of each class.
      num_clients: N.
      alpha: the concentration of the Dirichlet distribution.
      cap: clients that hold at least this many samples get no more; infinity for none.

    Returns:
      Cuts [classes, N] int64.
    """
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


def scaled_cuts(cuts: np.ndarray, totals_test: np.ndarray) -> np.ndarray:
    """Returns cuts [classes, N] of a test set in the proportions of `cuts`.

    Example:
      >>> scaled_cuts(np.array([[1, 4]]), np.array([8]))
      array([[2, 8]])
    """
    return cuts * totals_test[:, None] // np.maximum(cuts[:, -1:], 1)


def cut_classes(
    labels: np.ndarray, cuts: np.ndarray, rng: np.random.Generator
) -> list[np.ndarray]:
    """Gives each client the shuffled samples of every class between its cuts.

    Returns:
      A list of N integer arrays, indices into `labels`.
    """
    stacks = by_class(labels, rng, len(cuts))
    pieces = [np.split(s, cut)[:-1] for s, cut in zip(stacks, cuts, strict=True)]
    return [np.concatenate(client) for client in zip(*pieces, strict=True)]


def by_class(
    labels: np.ndarray, rng: np.random.Generator, num_classes: int | None = None
) -> list[np.ndarray]:
    """Returns the indices of each class, shuffled."""
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    counts = np.bincount(labels, minlength=num_classes or 0)
    return np.split(order, np.cumsum(counts)[:-1])


def raise_to_minimum(
    parts: list[np.ndarray], min_samples: int, unit: str = "samples"
) -> list[np.ndarray]:
    """Moves entries from the largest parts to those below a minimum, with a warning.

    Example:
      >>> with warnings.catch_warnings(action="ignore"):
      ...     [p.tolist() for p in raise_to_minimum([np.arange(4), np.arange(4, 5)], 2)]
      [[0, 1, 2], [4, 3]]
    """
    parts, sizes = list(parts), np.array([len(part) for part in parts])
    moved = np.maximum(min_samples - sizes, 0).sum()
    for client in np.flatnonzero(sizes < min_samples):
        while sizes[client] < min_samples:
            largest = np.argmax(sizes)
            parts[client] = np.append(parts[client], parts[largest][-1])
            parts[largest] = parts[largest][:-1]
            sizes[client] += 1
            sizes[largest] -= 1
    if moved:
        warnings.warn(
            f"moved {moved} {unit} from the largest clients to those with fewer than "
            f"{min_samples}",
            stacklevel=2,
        )
    return parts
