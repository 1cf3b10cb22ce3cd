"""Reads arrays that `np.savez` wrote, and never runs code of a pickle.

Beside the package's own names those of MedMNIST are known (Yang et al., "MedMNIST v2",
2023, arXiv:2110.14795). A folder of PFLlib (Zhang et al., "PFLlib: Personalized
Federated Learning Algorithm Library", arXiv:2312.04992) has the files train/0.npz and
test/0.npz of client 0, each `np.savez(file, data={"x": ..., "y": ...})`, which NumPy
pickles. Of a pickle, nothing but NumPy's arrays is read.
"""

import pickle
import warnings
import zipfile
from functools import partial
from pathlib import Path

import numpy as np

from sparsefl_jax.core.check import UserError, blame
from sparsefl_jax.data.arrays import join_users
from sparsefl_jax.data.cache import Source

NAMES = ("x", "y", "x_test", "y_test", "users", "users_test", "classes")
REFUSED = (".h5", ".hdf5", ".pkl", ".pickle", ".pt", ".pth", ".mat")
_ARRAYS = ("ndarray", "dtype", "_reconstruct", "scalar", "_frombuffer")
_MEDMNIST = {"train_images": "x", "train_labels": "y"}
_MEDMNIST |= {"test_images": "x_test", "test_labels": "y_test"}


def matches(name: str) -> bool:
    """Returns whether a name is that of arrays, or a folder with train/*.npz."""
    return name.endswith((".npz", *REFUSED)) or any(Path(name).glob("train/*.npz"))


def find(name: str) -> Source:
    """Finds a file with the arguments of `make_dataset`, or those of all clients."""
    path = Path(name)
    if path.suffix in REFUSED:
        write = "write their arrays with np.savez('mine.npz', x=x, y=y, users=users)"
        raise UserError(f"{path.suffix} files are not read: {write}")
    if path.suffix == ".npz":
        return Source(path.name, [], partial(read, path, tell=True))
    train, test = (sorted(path.glob(f"{s}/*.npz")) for s in ("train", "test"))
    decode = partial(_decode_clients, train, test)
    return Source(f"{path.resolve().name}/", train + test, decode)


def read(path: str | Path, tell: bool = False) -> dict:
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
        arrays = {name: f[known[name]] for name in NAMES if name in known}
        return arrays | {"numeric": True}


def _decode_clients(train: list[Path], test: list[Path]) -> dict[str, np.ndarray]:
    """Reads files into the arguments of `make_dataset`."""
    kind = int if all(file.stem.isdecimal() for file in train + test) else str
    found = []
    for suffix, files in (("", train), ("_test", test)):
        for file in files:
            with blame(f"file {str(file)!r}"):
                data = _unpickle(file)
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


def _unpickle(file: Path) -> dict:
    """Reads the dictionary `data` of a file."""
    with zipfile.ZipFile(file) as archive, archive.open("data.npy") as stream:
        np.lib.format.read_magic(stream)
        np.lib.format.read_array_header_1_0(stream)
        return _Unpickler(stream).load().item()
