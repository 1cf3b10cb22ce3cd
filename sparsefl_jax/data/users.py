"""The users of samples: their ids as int32, and the writers of MNIST's images.

Yadav and Bottou, "Cold Case: The Lost MNIST Digits", NeurIPS 2019, arXiv:1905.10498,
found the writer of every image (QMNIST). The package holds them in the order of the
images' bytes, so that they fit MNIST in any order, from any source.
"""

import zlib

import numpy as np

from sparsefl_jax.core.check import UserError
from sparsefl_jax.data.samples import FOLDER

_INT32 = np.iinfo(np.int32)
MNIST = "mnist"
_SPLITS = {"x": ("users", "writer_train"), "x_test": ("users_test", "writer_test")}
_CHECKS = {"x": 3098698383, "x_test": 1007578226}  # CRC-32 of the images in this order


def number(given: dict, lengths: dict) -> dict:
    """Numbers users, with the same number for a user in all splits.

    Args:
      given: by name, ids [n], integers or strings in any array or list, or None.
      lengths: by name, the number of samples n.

    Returns:
      By name, [n] int32, or None where None was given. Integers that fit int32 stay as
      they are. Strings and larger integers become their places in ascending order;
      integers beside strings count as strings.

    Raises:
      ValueError: there is not one id for each sample, or an id is neither an integer
        nor a string.

    Example:
      >>> ids = {"users": [2**32 + 7, 7], "users_test": [7]}
      >>> number(ids, {"users": 2, "users_test": 1})
      {'users': array([1, 0], dtype=int32), 'users_test': array([0], dtype=int32)}
    """
    ids = {k: _plain(k, v, lengths[k]) for k, v in given.items() if v is not None}
    distinct = set().union(*ids.values())
    if any(isinstance(user, str) for user in distinct):
        ids = {name: [*map(str, v)] for name, v in ids.items()}
        distinct = set(map(str, distinct))
    elif all(_INT32.min <= user <= _INT32.max for user in distinct):
        return given | {name: np.array(v, np.int32) for name, v in ids.items()}
    places = {user: place for place, user in enumerate(sorted(distinct))}
    numbers = {k: np.array([places[u] for u in v], np.int32) for k, v in ids.items()}
    return given | numbers


def by_content(x: np.ndarray) -> np.ndarray:
    """Returns the order of images by their bytes.

    Args:
      x: [n, ...] uint8.

    Returns:
      [n] integers, the rows in ascending order of their bytes.

    Example:
      >>> by_content(np.uint8([[7, 0], [1, 9], [1, 8]])).tolist()
      [2, 1, 0]
    """
    rows = np.ascontiguousarray(x).reshape(len(x), -1)
    return np.argsort(rows.view(np.dtype((np.void, rows.shape[1]))).ravel())


def of_mnist(arrays: dict[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """Returns the writer of each image of MNIST.

    Args:
      arrays: `x` [60000, 28, 28, 1] uint8 and `x_test` [10000, 28, 28, 1].
      name: the data set's name, for messages.

    Returns:
      `users` [60000] int32 and `users_test` [10000] int32.

    Raises:
      ValueError: the images are not those of MNIST.
    """
    found = {}
    with np.load(FOLDER / "mnist_writers.npz", allow_pickle=False) as kept:
        for split, (users, key) in _SPLITS.items():
            x, writers = arrays.get(split), kept[key].astype(np.int32)
            same = x is not None and len(x) == len(writers) and x.dtype == np.uint8
            order = by_content(x) if same else None
            if order is None or _CHECKS[split] != zlib.crc32(x[order].tobytes()):
                raise UserError(
                    f"writers={MNIST!r} are those of MNIST's images, but {name!r} has "
                    f"others in {split}"
                )
            found[users] = writers[np.argsort(order)]
    return found


def _plain(name: str, ids, length: int) -> list:
    """Returns ids as Python integers or strings."""
    ids = np.asarray(ids)
    if ids.shape != (length,):
        raise UserError(f"{name} has shape {ids.shape}, expected {length} ids")
    ids = [
        u.decode("utf-8", "surrogateescape") if isinstance(u, bytes) else u
        for u in ids.tolist()
    ]
    for user in ids:
        if isinstance(user, bool) or not isinstance(user, int | str):
            raise UserError(f"{name} holds {user!r}, expected integers or strings")
    return ids
