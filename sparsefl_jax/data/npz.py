"""Reads arrays that `np.savez` wrote, and never unpickles anything."""

from pathlib import Path

import numpy as np

from sparsefl_jax.core.check import UserError, blaming
from sparsefl_jax.data.cache import Source

_OPTIONAL = ("x_test", "y_test", "users", "users_test")
_KEYS = {"x": ("x", "x_train"), "y": ("y", "y_train")} | {k: (k,) for k in _OPTIONAL}
_WRITER_KEYS = {"users": ("writer_train",), "users_test": ("writer_test",)}


def matches(name: str) -> bool:
    """Returns whether a name is that of such a file."""
    return name.endswith(".npz")


def find(name: str) -> Source:
    """Finds a file with the arguments of `make_dataset`: x, y and more."""
    return Source(Path(name).stem, [], lambda: _read(name, _KEYS, _OPTIONAL))


def read_writers(path: str | Path) -> dict[str, np.ndarray]:
    """Reads `users` and `users_test`, which a file calls writer_train and _test."""
    with blaming(f"writers={str(path)!r}"):
        return _read(path, _WRITER_KEYS)


def _read(path, keys, optional=()):
    """Returns the arrays of a file; `keys` maps each name to its aliases."""
    arrays = {}
    with (
        blaming("expected np.savez of numbers or strings"),
        np.load(path, allow_pickle=False) as f,
    ):
        for name, aliases in keys.items():
            found = next((alias for alias in aliases if alias in f), None)
            if found:
                arrays[name] = f[found]
            elif name not in optional:
                raise UserError(
                    f"it holds {', '.join(f)} and lacks {' or '.join(aliases)}"
                )
    return arrays
