"""Reads arrays that `np.savez` wrote, and never unpickles anything.

Beside the package's own names those of MedMNIST are known (Yang et al., "MedMNIST v2",
2023, arXiv:2110.14795).
"""

import warnings
from pathlib import Path

import numpy as np

from sparsefl_jax.core.check import UserError, blame
from sparsefl_jax.data.cache import Source

NAMES = ("x", "y", "x_test", "y_test", "users", "users_test", "classes")
_MEDMNIST = {
    f"{split}_{kind}": f"{name}{suffix}"
    for split, suffix in {"train": "", "test": "_test"}.items()
    for kind, name in {"images": "x", "labels": "y"}.items()
}


def matches(name: str) -> bool:
    """Returns whether a name is that of such a file."""
    return name.endswith(".npz")


def find(name: str) -> Source:
    """Finds a file with the arguments of `make_dataset`: x, y and more."""
    return Source(Path(name).name, [], lambda: read(name, tell=True))


def read(path: str | Path, tell: bool = False) -> dict[str, np.ndarray]:
    """Reads the arrays of a file by name; x may be called x_train or train_images.

    Args:
      path: the file.
      tell: whether to warn of arrays that are not read.
    """
    with (
        blame("expected np.savez of numbers or strings"),
        np.load(path, allow_pickle=False) as f,
    ):
        known = {_MEDMNIST.get(k, k.removesuffix("_train")): k for k in f}
        if not {"x", "y"} <= known.keys():
            raise UserError(f"it holds {', '.join(f)}, expected x and y")
        other = ", ".join(key for name, key in known.items() if name not in NAMES)
        if tell and other:
            warnings.warn(f"{Path(path).name}: not read: {other}", stacklevel=2)
        return {name: f[known[name]] for name in NAMES if name in known}
