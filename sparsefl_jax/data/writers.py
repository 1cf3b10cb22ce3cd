"""The writers of MNIST's images, which make a natural split of it.

Yadav and Bottou, "Cold Case: The Lost MNIST Digits", NeurIPS 2019, arXiv:1905.10498,
found the writer of every image (QMNIST). The package holds them in the order of the
images' bytes, so that they fit MNIST in any order, from any source.
"""

import zlib

import numpy as np

from sparsefl_jax.data.samples import FOLDER

MNIST = "mnist"
_SPLITS = {"x": ("users", "writer_train"), "x_test": ("users_test", "writer_test")}
_CHECKS = {"x": 3098698383, "x_test": 1007578226}  # CRC-32 of the images in this order


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
                raise ValueError(
                    f"writers={MNIST!r} are those of MNIST's images, but {name!r} has "
                    f"others in {split}; expected an .npz file with its own"
                )
            found[users] = np.empty_like(writers)
            found[users][order] = writers
    return found
