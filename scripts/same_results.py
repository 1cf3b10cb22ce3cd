"""Checks that this tree gives the results of another commit, byte for byte.

python scripts/same_results.py [BASE] [--all] [--only NAME ...] [--floats 1e-6]

BASE is any commit, such as `main` or `HEAD~1`; the default is the one at which this
branch left main. It is checked out into a temporary folder that is removed afterwards.
Both trees run the same small configurations on this machine. The script then compares
`metrics.jsonl`, the masks, the partition and the models; it stores nothing. With
`--floats`, floats may differ by this much, relative or absolute; integers, booleans and
masks still have to be equal. The exit code is 0 if all results are the same, 1 if some
differ, and 2 if BASE cannot be checked out.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from same_results_tree import QUICK, RUNS  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = (
    "accuracy_by_class",  # as the commits before it have none
    "schema",
    "seconds",
    "commit",
    "date",
)  # fields of metrics.jsonl that may differ


def git(*args: str) -> str:
    """Returns the output of a git command in this repository.

    Raises:
      ValueError: there is no git or no repository, or the command fails.
    """
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *args], capture_output=True, text=True
        )
    except OSError as error:
        raise ValueError(f"git cannot be run: {error}") from None
    if done.returncode:
        raise ValueError(f"git {args[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def merge_base() -> str:
    """Returns the commit that this tree is compared with by default.

    It is the last commit that this branch shares with main or, on main itself without
    uncommitted changes, the previous commit.

    Raises:
      ValueError: this is not a clone, or a shallow one that lacks the commit.
    """
    if Path(git("rev-parse", "--show-toplevel")).resolve() != ROOT:
        raise ValueError(f"{ROOT} is not a clone")
    refs = git("for-each-ref", "--format=%(refname)").splitlines()
    mains = ("refs/heads/main", "refs/remotes/origin/main")
    main = next((ref for ref in mains if ref in refs), "HEAD")
    base = git("merge-base", "HEAD", main)
    if base == git("rev-parse", "HEAD") and not git("status", "--porcelain", "-uno"):
        base = git("rev-parse", "--verify", "HEAD~1")
    return base


def expected(base: str, names) -> tuple[list[str], float | None]:
    """Returns the configurations to compare, and how much floats may differ.

    A commit that changes results says so at the end of its message: `Results: floats
    1e-6` by how much floats change, `Results: NAME (why)` that a configuration changes,
    `Results: all (why)` that all change.

    Args:
      base: a commit; the messages of later commits are read.
      names: names of `RUNS`.
    """
    trailers = git("log", "--format=%(trailers:key=Results,valueonly)", f"{base}..HEAD")
    lines = [line.split() for line in trailers.splitlines() if line]
    changed = {words[0] for words in lines}
    floats = [float(words[1]) for words in lines if words[0] == "floats"]
    left = [] if "all" in changed else [name for name in names if name not in changed]
    return left, max(floats, default=None)


@contextlib.contextmanager
def checked_out(base: str):
    """Checks out a commit into a folder, and removes it at the end.

    Raises:
      ValueError: there is no such commit.
    """
    commit = git("rev-parse", "--verify", f"{base}^{{commit}}")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git("worktree", "add", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def write_samples(folder: Path) -> None:
    """Writes the data sets of the configurations, with 4 classes and 8 users."""
    shapes = {"pixels": (2, 3, 1), "gray": (28, 28, 1), "colour": (32, 32, 3)}
    for name, shape in shapes.items():
        rng = np.random.default_rng(0)
        train, test = (160, 80) if name == "pixels" else (64, 16)
        y = np.arange(train + test) % 4
        x = rng.normal(0, 0.3, (train + test, *shape)).astype(np.float32)
        x[:, 0, 0, 0] += y
        arrays = {"x": x[:train], "y": y[:train], "x_test": x[train:]}
        arrays |= {"y_test": y[train:], "users": np.arange(train) % 8}
        np.savez(folder / f"{name}.npz", **arrays)


def run_tree(tree: Path, folder: Path, names, samples: Path) -> None:
    """Runs configurations in a tree; each writes a folder and a log of its name."""
    env = os.environ | {
        "PYTHONPATH": str(tree),
        "SAME_RESULTS_SAMPLES": str(samples),
        "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu"),
        "MPLBACKEND": "Agg",
    }
    driver = Path(__file__).with_name("same_results_tree.py")
    command = [sys.executable, str(driver), str(folder), *names]
    folder.mkdir(parents=True)
    jobs = f"--jobs={max(1, (os.cpu_count() or 1) // 2)}"
    subprocess.run([*command, jobs], cwd=tree, env=env, check=False)


def differences(old: Path, new: Path, tolerance: float | None = None) -> list[str]:
    """Returns a line for each difference between two folders of a run.

    Args:
      old: the folder that the base wrote.
      new: the folder that this tree wrote.
      tolerance: how much floats may differ, relative or absolute; None for not at all.
    """
    files = [_compared(folder) for folder in (old, new)]
    for folder, found, where in (
        (old, files[0], "in the base"),
        (new, files[1], "here"),
    ):
        if not any(file.name == "models.npz" for file in found):
            return [f"it failed {where}: {_last_line(folder)}"]
    found = [f"{file}: only in the base" for file in sorted(files[0] - files[1])]
    found += [f"{file}: not in the base" for file in sorted(files[1] - files[0])]
    for file in sorted(files[0] & files[1]):
        a, b = old / file, new / file
        if a.read_bytes() != b.read_bytes():
            found += [f"{file}: {line}" for line in _of_files(a, b, tolerance)]
    return found


def _compared(folder: Path) -> set[Path]:
    """Returns the files of a run and all its seeds that must not differ."""
    wanted = ("metrics.jsonl", "partition.npy", "models.npz", "masks/server_*")
    found = (file for glob in wanted for file in folder.rglob(glob))
    return {file.relative_to(folder) for file in found}


def _last_line(folder: Path) -> str:
    log = folder.parent / f"{folder.name}.log"
    lines = log.read_text().strip().splitlines() if log.exists() else []
    return lines[-1] if lines else "it did not start"


def _of_files(a: Path, b: Path, tolerance) -> list[str]:
    if a.suffix == ".jsonl":
        old, new = (p.read_text().splitlines() for p in (a, b))
        found = [] if len(old) == len(new) else [f"{len(old)} lines, now {len(new)}"]
        for index, (x, y) in enumerate(zip(old, new, strict=False)):
            line = _flat(json.loads(x)), _flat(json.loads(y))
            found += [f"line {index + 1}: {s}" for s in _of_values(*line, tolerance)]
        return found
    if a.suffix == ".npz":
        with np.load(a) as x, np.load(b) as y:
            return _of_values(dict(x), dict(y), tolerance)
    if a.suffix == ".npy":
        return _of_values({"array": np.load(a)}, {"array": np.load(b)}, tolerance)
    return ["its bytes differ"]


def _of_values(old: dict, new: dict, tolerance) -> list[str]:
    found = [f"{key} is missing" for key in old.keys() - new.keys()]
    found += [f"{key} is new" for key in new.keys() - old.keys()]
    for key in sorted(old.keys() & new.keys()):
        a, b = np.asarray(old[key]), np.asarray(new[key])
        if not _same(a, b, tolerance):
            found.append(f"{key}: {_short(a)}, now {_short(b)}")
    return found


def _same(a: np.ndarray, b: np.ndarray, tolerance) -> bool:
    if a.shape != b.shape or a.dtype.kind != b.dtype.kind:
        return False
    if a.dtype.kind != "f":
        return np.array_equal(a, b)
    if tolerance is None:
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    return np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


def _short(array: np.ndarray) -> str:
    if array.size <= 1:
        return repr(array.tolist())
    return f"{array.dtype}{list(array.shape)} {np.ravel(array)[:3]}..."


def _flat(record: dict, prefix: str = "") -> dict:
    """Returns a record with dotted keys."""
    flat = {}
    for key, value in record.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        elif key not in LEFT_OUT:
            flat[prefix + key] = value
    return flat


def compare(base: str, names, tolerance: float | None = None) -> dict[str, list[str]]:
    """Runs both trees and returns the differences of each configuration.

    Args:
      base: a commit.
      names: names of `RUNS`.
      tolerance: as in `differences`.

    Raises:
      ValueError: there is no such commit, or no git.
    """
    with checked_out(base) as tree, tempfile.TemporaryDirectory() as folder:
        samples, old, new = (Path(folder) / n for n in ("samples", "old", "new"))
        samples.mkdir()
        write_samples(samples)
        run_tree(tree, old, names, samples)
        run_tree(ROOT, new, names, samples)
        return {n: differences(old / n, new / n, tolerance) for n in names}


def _end(*_) -> None:
    sys.exit(143)  # so that the temporary tree is removed


def main() -> None:
    """Prints a line for each configuration."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("base", nargs="?", help="a commit")
    parser.add_argument("--all", action="store_true", help=f"all {len(RUNS)}, not 5")
    parser.add_argument("--only", action="append", choices=RUNS, help="one of them")
    parser.add_argument("--floats", type=float, help="how much floats may differ")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, _end)
    wanted = args.only or (RUNS if args.all else QUICK)
    try:
        base = args.base or merge_base()
        names, floats = expected(base, wanted)
        tolerance = floats if args.floats is None else args.floats
        compared = compare(base, names, tolerance)
    except ValueError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    for name in wanted:
        lines = compared.get(name, ["changed, as a commit says"])
        print(f"{name}: {'differs' if lines else 'the same'}")
        print(*(f"  {line}" for line in lines[:10]), sep="\n", end="\n" * bool(lines))
        if len(lines) > 10:
            print(f"  and {len(lines) - 10} more")
    sys.exit(any(compared.values()))


if __name__ == "__main__":
    main()
