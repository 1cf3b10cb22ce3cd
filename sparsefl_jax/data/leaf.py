"""LEAF's JSON files: the samples of each user, FEMNIST among them.

Caldas et al., "LEAF: A Benchmark for Federated Settings", arXiv:1812.01097. A file is
`{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}`.
Rows of 784 numbers become images [28, 28, 1] as LEAF has them, ink dark (0) on white
(1); rows of any other length stay features [D].

Files are read one after another, and pixels that are whole multiples of 1/255, as
FEMNIST's are, become uint8: without loss, and a quarter of float32's memory. The result
is cached, since FEMNIST's 805,263 images take minutes to parse.
"""

import json
from pathlib import Path

import numpy as np

from sparsefl_jax.data import cache

_SIDE = 28


def find(folder: str | Path) -> dict:
    """Finds LEAF's files in a folder, or in its subfolder `data`.

    Args:
      folder: a path.

    Returns:
      Lists of files by split, `train` and `test`: those in the subfolders of that name;
      else all of the folder itself, or of `all_data`, as `train`. Empty if there are no
      such files.

    Example:
      >>> find("no/such/folder")
      {}
    """
    for root in (Path(folder), Path(folder) / "data"):
        splits = {s: sorted((root / s).glob("*.json")) for s in ("train", "test")}
        if splits["train"]:
            return splits
        for place in (root, root / "all_data"):
            if files := sorted(place.glob("*.json")):
                return {"train": files, "test": []}
    return {}


def read(folder: str | Path) -> dict:
    """Reads LEAF's files into arrays for `sources.make_dataset`.

    Args:
      folder: as `find` takes it.

    Returns:
      `x` [n, 28, 28, 1] uint8 or float32, or [n, D] float32; `y` [n] int32; `users` [n]
      int32, numbered as they come in the files. Where there is a test split also
      `x_test`, `y_test` and `users_test`.

    Raises:
      ValueError: there are no such files, or one is damaged or holds no numbers.
    """
    splits = find(folder)
    if not splits:
        raise ValueError(
            f"data set {str(folder)!r} is no folder of LEAF's files, expected "
            "train/*.json and test/*.json, or *.json, or all_data/*.json"
        )
    name, files = Path(folder).resolve().name, [f for s in splits.values() for f in s]
    return cache.through(f"leaf-{name}", Path(folder), files, lambda: _decode(splits))


def _decode(splits):
    """Returns the arrays of all files; users have the same numbers in both splits."""
    found = {
        s: [u for file in files for u in _users(file)] for s, files in splits.items()
    }
    shapes = {x.shape[1:] for users in found.values() for _, x, _ in users}
    if not found["train"] or len(shapes) > 1:
        kinds = f"samples of shapes {sorted(shapes)}" if shapes else "no samples"
        raise _refusal(splits["train"][0], f"it and those beside it hold {kinds}")
    exact = all(x.dtype == np.uint8 for users in found.values() for _, x, _ in users)
    numbers, arrays = {}, {}
    for split, ending in (("train", ""), ("test", "_test")):
        if not found[split]:
            continue
        users, x, y = zip(*found[split], strict=True)
        ids = [numbers.setdefault(user, len(numbers)) for user in users]
        arrays[f"x{ending}"] = np.concatenate(x if exact else [*map(_unit, x)])
        arrays[f"y{ending}"] = np.concatenate(y)
        arrays[f"users{ending}"] = np.repeat(np.int32(ids), [len(each) for each in y])
    return arrays


def _users(file):
    """Yields (user, x [n, ...], y [n]) of a file, and frees what was yielded."""
    try:
        told = json.loads(file.read_bytes())
        users, sizes, data = (
            told.pop(k) for k in ("users", "num_samples", "user_data")
        )
        counts = len(users), len(sizes)
    except KeyError as error:
        raise _refusal(file, f"it lacks {error}") from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _refusal(file, f"it is damaged: {error}") from None
    if counts[0] != counts[1]:
        raise _refusal(file, "it has {} users and {} num_samples".format(*counts))
    for user, size in zip(users, sizes, strict=True):
        try:
            own = data.pop(user)
            x, y = own["x"], own["y"]
            lengths = len(x), len(y)
        except (KeyError, TypeError, AttributeError):
            raise _refusal(file, f"user_data lacks x or y of user {user!r}") from None
        if lengths != (size, size):
            told = "num_samples {}, {} x and {} y".format(size, *lengths)
            raise _refusal(file, f"user {user!r} has {told}")
        if size:
            yield user, _samples(file, user, x), _labels(file, user, y)


def _samples(file, user, x):
    """Returns one user's samples: images, uint8 where nothing is lost, or features."""
    x = _array(file, user, "x", x)
    if x.dtype.kind in "US":
        raise _refusal(
            file,
            "x holds texts; features are made from a CSV of them by "
            "`python -m sparsefl_jax.data.text`",
        )
    if x.ndim != 2 or x.dtype.kind not in "iuf":
        raise _refusal(file, f"x of user {user!r} is {x.dtype} {x.shape}, not [n, D]")
    if x.shape[1] == _SIDE**2:
        x = x.reshape(-1, _SIDE, _SIDE, 1)
        levels = np.rint(255 * x.clip(0, 1))
        # LEAF divides by 255 in float64, so its pixels are met to the last bit.
        if (levels / 255 == x).all():
            return levels.astype(np.uint8)
    with np.errstate(over="ignore"):  # make_dataset refuses what is not finite
        return x.astype(np.float32)


def _labels(file, user, y):
    """Returns one user's labels."""
    y = _array(file, user, "y", y)
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise _refusal(file, f"y of user {user!r} is {y.dtype} {y.shape}, not integers")
    return y


def _array(file, user, name, values):
    """Returns lists as an array."""
    try:
        return np.asarray(values)
    except ValueError:
        told = f"{name} of user {user!r} has rows of several lengths"
        raise _refusal(file, told) from None


def _unit(x):
    """Returns pixels as float32 from 0 to 1."""
    return x / np.float32(255) if x.dtype == np.uint8 else x


def _refusal(file, reason):
    return ValueError(f"LEAF file {str(file)!r}: {reason}")
