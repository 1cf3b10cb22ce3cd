"""Reads PFLlib's folders, in which train/0.npz and test/0.npz are those of client 0.

Zhang et al., "PFLlib: Personalized Federated Learning Algorithm Library",
arXiv:2312.04992. A file is `np.savez(file, data={"x": ..., "y": ...})`, which NumPy
pickles. Of a pickle, nothing but NumPy's arrays is read, so that no code can run.
"""

import pickle
import zipfile
from functools import partial
from pathlib import Path

import numpy as np

from sparsefl_jax.core.check import UserError, blame
from sparsefl_jax.data.arrays import join_users
from sparsefl_jax.data.cache import Source

_ARRAYS = ("ndarray", "dtype", "_reconstruct", "scalar", "_frombuffer")


def matches(name: str) -> bool:
    """Returns whether a name is that of a folder with train/*.npz."""
    return any(Path(name).glob("train/*.npz"))


def find(name: str) -> Source:
    """Finds the files of all clients; each client is a user."""
    train, test = (sorted(Path(name).glob(f"{s}/*.npz")) for s in ("train", "test"))
    title = f"{Path(name).resolve().name}/"
    return Source(title, train + test, partial(_decode, train, test))


def _decode(train: list[Path], test: list[Path]) -> dict[str, np.ndarray]:
    """Reads files into the arguments of `make_dataset`."""
    kind = int if all(file.stem.isdecimal() for file in train + test) else str
    found = []
    for suffix, files in (("", train), ("_test", test)):
        for file in files:
            with blame(f"file {str(file)!r}"):
                data = _read(file)
                x, y = np.asarray(data["x"]), np.asarray(data["y"])
            found.append((kind(file.stem), suffix, x, y))
    with blame("its clients' samples differ in shape"):
        return join_users(found)


class _Unpickler(pickle.Unpickler):
    """Unpickles arrays, and refuses everything that could run code."""

    def find_class(self, module: str, name: str):
        if module.partition(".")[0] == "numpy" and name in _ARRAYS:
            return super().find_class(module, name)
        raise UserError(f"it holds {module}.{name}, expected arrays alone")


def _read(file: Path) -> dict:
    """Reads the dictionary `data` of a file."""
    with zipfile.ZipFile(file) as archive, archive.open("data.npy") as stream:
        np.lib.format.read_magic(stream)
        np.lib.format.read_array_header_1_0(stream)
        return _Unpickler(stream).load().item()
