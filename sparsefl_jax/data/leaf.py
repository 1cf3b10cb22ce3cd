"""Reads LEAF's JSON files, such as FEMNIST, which hold the samples of each user.

Caldas et al., "LEAF: A Benchmark for Federated Settings", arXiv:1812.01097. A file is
`{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}`,
whose `num_samples` is not read. Rows of 784 numbers become images [28, 28, 1] with
LEAF's colours, dark ink (0) on white (1). Rows of any other length stay features [D].
Texts of one length, each with the next character as its label (Shakespeare), become
tokens and the next token of each of them. Of Sent140's samples, rows of texts, the
fifth is the tweet. FedProx's files have whole floats as labels.

Files are read one after another. Pixels that are whole multiples of 1/255, as FEMNIST's
are, become uint8, which loses nothing and takes a quarter of float32's memory. The
result is cached, because FEMNIST's 805,263 images take minutes to parse.
"""

from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sparsefl_jax.core.check import UserError, blame
from sparsefl_jax.data import characters
from sparsefl_jax.data.arrays import join_users
from sparsefl_jax.data.cache import Source

_SIDE = 28
_TWEET = 5  # columns of Sent140 to the tweet; the split's name comes after it


def matches(name: str) -> bool:
    """Returns whether a name is that of a folder with such files."""
    return any(map(any, map(_root(name).glob, ("train/*.json", "*.json"))))


def find(name: str) -> Source:
    """Finds LEAF's files in a folder.

    They are those of the subfolders `train` and `test`, or, all for training, those of
    the folder itself. LEAF's own folders, such as `synthetic`, have them in `data`.
    """
    folder = _root(name)
    files = sorted(folder.glob("train/*.json")) or sorted(folder.glob("*.json"))
    tests = sorted(folder.glob("test/*.json"))
    title = f"{Path(name).resolve().name}/"
    return Source(title, files + tests, partial(_decode, files, tests))


def _root(name: str) -> Path:
    """Returns the folder of `train`, which may be `data` in the one that is named."""
    folders = Path(name), Path(name, "data")
    return next((f for f in folders if any(f.glob("train/*.json"))), folders[0])


def _decode(train: list[Path], test: list[Path]) -> dict[str, np.ndarray]:
    """Reads files into the arguments of `make_dataset`.

    Returns:
      `x` [n, 28, 28, 1] uint8 or float32, or [n, D] float32; `y` [n] integers; or, of
      texts, `x` [n, T] uint8 and `y` [n, T] int32, see `characters`, or `x` [n] texts;
      `users` [n] integers, numbered in the order of the files, with one number in both
      splits, and their `user_names`.
    """
    found, numbers = [], {}
    for suffix, files in (("", train), ("_test", test)):
        for user, x, y in chain.from_iterable(map(_users, files)):
            found.append((numbers.setdefault(user, len(numbers)), suffix, x, y))
    shapes = {x.shape[1:] for _, _, x, _ in found}
    if len(shapes) != 1 or all(suffix for _, suffix, _, _ in found):
        told = f"{str(train[0])!r} and the files beside it hold {sorted(shapes)}"
        raise UserError(f"{told}, expected samples of one shape")
    if {x.dtype.kind for _, _, x, _ in found} == {"u", "f"}:
        found = [(*begin, _as_float(x), y) for *begin, x, y in found]
    return join_users(found) | {"user_names": np.array(list(numbers))}


def _as_float(x):
    return x / np.float32(255) if x.dtype == np.uint8 else x


class _User(msgspec.Struct):
    x: list[Any]
    y: list[Any]


class _File(msgspec.Struct):
    users: list[str]
    user_data: dict[str, _User]


def _users(file: Path) -> Iterator[tuple]:
    """Yields (user, x [n, ...], y [n]) of a file, and frees each user's JSON lists."""
    with blame(f"file {str(file)!r}"):
        content = msgspec.json.decode(file.read_bytes(), type=_File)
        for user in content.users:
            with blame(f"user {user!r}"):
                if user not in content.user_data:
                    raise UserError("user_data lacks it")
                found = content.user_data.pop(user)
                if len(found.x) != len(found.y):
                    raise UserError(f"{len(found.x)} x and {len(found.y)} y")
                if found.x:
                    yield user, *_arrays(np.asarray(found.x), np.asarray(found.y))


def _arrays(x, y):
    """Returns one user's samples and labels; images in uint8 if that loses nothing."""
    if x.dtype.kind == y.dtype.kind == "U" and x.ndim == 1:
        return characters.cut_texts(x.tolist(), y.tolist())
    if y.ndim != 1 or y.dtype.kind not in "iuf":
        raise UserError(f"y is {y.dtype} {y.shape}, not integers")
    if x.dtype.kind == "U":
        return x.reshape(len(x), -1)[:, :_TWEET][:, -1], y
    if x.ndim != 2 or x.dtype.kind not in "iuf":
        raise UserError(f"x is {x.dtype} {x.shape}, not [n, D]")
    if x.shape[1] == _SIDE**2:
        x = x.reshape(-1, _SIDE, _SIDE, 1)
        levels = np.rint(255 * x.clip(0, 1))
        # LEAF divides by 255 in float64, so equal pixels agree to the last bit.
        if (levels / 255 == x).all():
            return levels.astype(np.uint8), y
    with np.errstate(over="ignore"):  # make_dataset refuses values that are not finite
        return x.astype(np.float32), y
