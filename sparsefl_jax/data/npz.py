"""Reads arrays that `np.savez` wrote, and never unpickles anything."""

from pathlib import Path

import numpy as np

from sparsefl_jax.core.check import UserError, blame
from sparsefl_jax.data.cache import Source

NAMES = ("x", "y", "x_test", "y_test", "users", "users_test")


def matches(name: str) -> bool:
    """Returns whether a name is that of such a file."""
    return name.endswith(".npz")


def find(name: str) -> Source:
    """Finds a file with the arguments of `make_dataset`: x, y and more."""
    return Source(Path(name).stem, [], lambda: read(name) | {"numeric": True})


def read(path: str | Path) -> dict[str, np.ndarray]:
    """Reads the arrays of a file by name; x may be called x_train, and y y_train."""
    with (
        blame("expected np.savez of numbers or strings"),
        np.load(path, allow_pickle=False) as f,
    ):
        known = {key.removesuffix("_train"): key for key in f}
        if not {"x", "y"} <= known.keys():
            raise UserError(f"it holds {', '.join(f)}, expected x and y")
        return {name: f[known[name]] for name in NAMES if name in known}
