"""The users of samples: their ids as int32, and the writers of MNIST's images.

Yadav and Bottou, "Cold Case: The Lost MNIST Digits", NeurIPS 2019, arXiv:1905.10498,
found the writer of every image (QMNIST). The package holds them in the order of the
images' bytes, so that they fit MNIST in any order, from any source.
"""

import zlib

import numpy as np

from sparsefl_jax.core.check import UserError
from sparsefl_jax.data.arrays import number_values
from sparsefl_jax.data.samples import FOLDER

MNIST = "mnist"
_SPLITS = {"x": ("users", "writer_train"), "x_test": ("users_test", "writer_test")}
_CHECKS = {"x": 3098698383, "x_test": 1007578226}  # CRC-32 of the images in this order


def number(given: dict, lengths: dict) -> dict:
    """Numbers users, with the same number for a user in all splits.

    Args:
      given: by name, ids [n], integers or strings, or None.
      lengths: by name, the number of samples n.

    Returns:
      By name, where ids were given, [n] int32, their places in ascending order.
      Integers beside strings count as strings. `user_names`, [U] str, are the ids by
      place, if there are any.

    Raises:
      ValueError: there is not one id for each sample, or an id is neither an integer
        nor a string.

    Example:
      >>> ids = {"users": [2**32 + 7, 7], "users_test": [7]}
      >>> found = number(ids, {"users": 2, "users_test": 1})
      >>> found["users"].tolist(), found["users_test"].tolist()
      ([1, 0], [0])
      >>> found["user_names"].tolist()
      ['7', '4294967303']
    """
    # From a list, as pandas keeps strings as objects.
    known = {k: np.asarray(v).tolist() for k, v in given.items() if v is not None}
    ids = {name: np.asarray(found) for name, found in known.items()}
    for name, found in ids.items():
        if found.shape != (lengths[name],):
            n = lengths[name]
            raise UserError(f"{name} has shape {found.shape}, expected {n} ids")
        if found.dtype.kind not in "iuUS":
            raise UserError(f"{name} are {found.dtype}, expected integers or strings")
    if not ids:
        return {}
    parts, names = number_values(ids.values())
    if names.dtype.kind == "S":
        names = np.char.decode(names, "utf-8", "replace")
    found = dict(zip(ids, parts, strict=True))
    return found | {"user_names": names.astype(str)}


def by_content(x: np.ndarray) -> np.ndarray:
    """Returns the order of images by their bytes.

    Args:
      x: [n, ...].

    Returns:
      [n] integers, the rows in ascending order of their bytes.

    Example:
      >>> by_content(np.uint8([[7, 0], [1, 9], [1, 8]])).tolist()
      [2, 1, 0]
    """
    rows = np.ascontiguousarray(x).reshape(len(x), -1)
    return np.argsort(rows.view((np.void, rows[:1].nbytes)).ravel())


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
            x = arrays.get(split, arrays["x"])
            order = by_content(x)
            if _CHECKS[split] != zlib.crc32(x[order].tobytes()):
                raise UserError(f"writers={MNIST!r}, but {name!r} is not MNIST")
            found[users] = kept[key].astype(np.int32)[np.argsort(order)]
    return found
