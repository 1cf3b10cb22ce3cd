"""Reads LEAF's JSON files, such as FEMNIST, which hold the samples of each user.

Caldas et al., "LEAF: A Benchmark for Federated Settings", arXiv:1812.01097. A file is
`{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}`,
whose `num_samples` is not read. Rows of 784 numbers become images [28, 28, 1] with
LEAF's colours, dark ink (0) on white (1). Rows of any other length stay features [D].
Texts of one length, each with the next character as its label (Shakespeare), become
tokens and the next token of each of them.

Files are read one after another. Pixels that are whole multiples of 1/255, as FEMNIST's
are, become uint8, which loses nothing and takes a quarter of float32's memory. The
result is cached, because FEMNIST's 805,263 images take minutes to parse.
"""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sparsefl_jax.core.check import UserError, blaming
from sparsefl_jax.data import cache, characters

_SIDE = 28


def find(folder: str | Path) -> dict[str, list[Path]]:
    """Finds LEAF's files in a folder, or in its subfolder `data`.

    Args:
      folder: a path.

    Returns:
      Lists of files by split: the files of the subfolders `train` and `test`. If there
      are none, the files of the folder itself, or else of `all_data`, are `train`. The
      dictionary is empty if there are no files at all.

    Example:
      >>> find("no/such/folder")
      {}
    """
    for root in (Path(folder), Path(folder) / "data"):
        splits = {s: sorted((root / s).glob("*.json")) for s in ("train", "test")}
        if splits["train"]:
            return splits
        for flat in (root, root / "all_data"):
            if files := sorted(flat.glob("*.json")):
                return {"train": files, "test": []}
    return {}


def read(folder: str | Path) -> dict[str, np.ndarray]:
    """Reads LEAF's files into arrays for `sources.make_dataset`.

    Args:
      folder: as `find` takes it.

    Returns:
      `x` [n, 28, 28, 1] uint8 or float32, or [n, D] float32; `y` [n] integers; or, of
      texts, `x` [n, T] uint8 and `y` [n, T] int32, see `characters`; `users` [n]
      int32, numbered in the order of the files. A test split adds `x_test`, `y_test`
      and `users_test`.

    Raises:
      ValueError: there are no such files, or one is damaged or does not hold numbers.
    """
    splits = find(folder)
    if not splits:
        raise UserError(
            f"data set {str(folder)!r} is not a folder of LEAF's files, expected "
            "train/*.json and test/*.json, or *.json, or all_data/*.json"
        )
    name, files = Path(folder).resolve().name, [f for s in splits.values() for f in s]
    return cache.through(f"leaf-{name}", Path(folder), files, lambda: _decode(splits))


def _decode(splits):
    """Returns the arrays of all files; a user has one number in both splits."""
    found = {
        split: [user_samples for file in files for user_samples in _users(file)]
        for split, files in splits.items()
    }
    shapes = {x.shape[1:] for users in found.values() for _, x, _ in users}
    if not found["train"] or len(shapes) > 1:
        content = f"samples of shapes {sorted(shapes)}" if shapes else "no samples"
        raise UserError(
            f"LEAF file {str(splits['train'][0])!r}: it and the files beside it hold "
            f"{content}"
        )
    exact = all(x.dtype == np.uint8 for users in found.values() for _, x, _ in users)
    numbers, arrays = {}, {}
    for split, suffix in (("train", ""), ("test", "_test")):
        if not found[split]:
            continue
        users, x, y = zip(*found[split], strict=True)
        ids = [numbers.setdefault(user, len(numbers)) for user in users]
        sizes = [len(labels) for labels in y]
        if not exact:
            x = [v / np.float32(255) if v.dtype == np.uint8 else v for v in x]
        arrays[f"x{suffix}"] = np.concatenate(x)
        arrays[f"y{suffix}"] = np.concatenate(y)
        arrays[f"users{suffix}"] = np.repeat(np.int32(ids), sizes)
    return arrays


class _User(msgspec.Struct):
    x: list[Any]
    y: list[Any]


class _File(msgspec.Struct):
    users: list[str]
    user_data: dict[str, _User]


def _users(file):
    """Yields (user, x [n, ...], y [n]) of a file, and frees each user's JSON lists."""
    with blaming(f"LEAF file {str(file)!r}"):
        content = msgspec.json.decode(file.read_bytes(), type=_File)
        for user in content.users:
            with blaming(f"user {user!r}"):
                if user not in content.user_data:
                    raise UserError("user_data lacks it")
                found = content.user_data.pop(user)
                if len(found.x) != len(found.y):
                    raise UserError(f"{len(found.x)} x and {len(found.y)} y")
                if found.x:
                    yield user, *_arrays(np.asarray(found.x), np.asarray(found.y))


def _arrays(x, y):
    """Returns one user's samples and labels."""
    if x.dtype.kind == y.dtype.kind == "U":
        return characters.followed(x.tolist(), y.tolist())
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise UserError(f"y is {y.dtype} {y.shape}, not integers")
    return _samples(x), y


def _samples(x):
    """Returns one user's images, in uint8 if that loses nothing, or features."""
    if x.ndim != 2 or x.dtype.kind not in "iuf":
        raise UserError(f"x is {x.dtype} {x.shape}, not [n, D]")
    if x.shape[1] == _SIDE**2:
        x = x.reshape(-1, _SIDE, _SIDE, 1)
        levels = np.rint(255 * x.clip(0, 1))
        # LEAF divides by 255 in float64, so equal pixels agree to the last bit.
        if (levels / 255 == x).all():
            return levels.astype(np.uint8)
    with np.errstate(over="ignore"):  # make_dataset refuses values that are not finite
        return x.astype(np.float32)
