"""The arithmetic of partitions: classes cut at cumulative counts.

`cuts` [classes, N] int64 holds, for each class and client, how many samples of the
class go to the clients up to and including this one.
"""

import warnings

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike

from sparsefl_jax.core.check import UserError, check, integer

Parts = list[np.ndarray]  # the rows of each client


def check_labels(labels: ArrayLike, num_clients: int, least: int = 1) -> np.ndarray:
    """Returns the labels as an array [n].

    Raises:
      ValueError: there are too few samples for the clients, or no number of clients.
    """
    labels = np.asarray(labels)
    check("min_samples", least, "[1, inf)")
    check("num_clients", num_clients, integer(1))
    if num_clients * least > len(labels):
        told = f"num_clients={num_clients} with at least {least} samples each"
        raise UserError(f"{told}; there are {len(labels)} samples")
    return labels


def scale_cuts(cuts: np.ndarray, totals_test: np.ndarray) -> np.ndarray:
    """Returns cuts [classes, N] of a test set in the proportions of `cuts`.

    Example:
      >>> scale_cuts(np.array([[1, 4]]), np.array([8]))
      array([[2, 8]])
    """
    return cuts * totals_test[:, None] // np.maximum(cuts[:, -1:], 1)


def cut_classes(labels: np.ndarray, cuts: np.ndarray, rng: Generator) -> Parts:
    """Gives each client the shuffled samples of every class between its cuts.

    Returns:
      A list of N integer arrays, indices into `labels`.
    """
    stacks = by_class(labels, rng, len(cuts))
    pieces = [np.split(s, cut)[:-1] for s, cut in zip(stacks, cuts, strict=True)]
    return [np.concatenate(client) for client in zip(*pieces, strict=True)]


def by_class(labels: np.ndarray, rng: Generator, num_classes: int = 0) -> Parts:
    """Returns the indices of each class, shuffled."""
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    counts = np.bincount(labels, minlength=num_classes)
    return np.split(order, np.cumsum(counts)[:-1])


def raise_to_minimum(parts: Parts, min_samples: int, unit: str = "samples") -> Parts:
    """Moves entries from the largest parts to those below a minimum, with a warning.

    Example:
      >>> with warnings.catch_warnings(action="ignore"):
      ...     [p.tolist() for p in raise_to_minimum([np.arange(4), np.arange(4, 5)], 2)]
      [[0, 1, 2], [4, 3]]
    """
    parts, moved = list(parts), 0
    for client in range(len(parts)):
        while len(parts[client]) < min_samples:
            largest = np.argmax([len(part) for part in parts])
            parts[client] = np.append(parts[client], parts[largest][-1])
            parts[largest] = parts[largest][:-1]
            moved += 1
    if moved:
        told = f"moved {moved} {unit} from the largest clients to those with fewer than"
        warnings.warn(f"{told} {min_samples}", stacklevel=2)
    return parts
