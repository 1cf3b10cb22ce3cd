"""The checkpoint of a run: all that is needed to continue, and the models so far.

`checkpoint/` is written by orbax and replaced as a whole. Its items are `state` (flat,
by path), `models` and `best` (nested, by the model's name) and `about`, a JSON file
with the progress of the run, the hardware and versions, and checksums, including one of
itself. Nothing is ever unpickled. Client states on disk are kept in `clients/STEP/`,
see `rows`, because orbax would copy them in memory.

`FORMAT` is increased whenever older checkpoints can no longer be continued.
"""

import contextlib
import functools
import json
import logging
import shutil
import sys
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from sparsefl_jax.core.check import UserError, blaming
from sparsefl_jax.core.types import PyTree, SparseModel
from sparsefl_jax.simulation import rows
from sparsefl_jax.sparsity import trees

FORMAT = 1


class Best(NamedTuple):
    """The models of the best evaluation of the last stage."""

    accuracy: float  # of the headline model, by the run's metric
    chosen_by: str  # 'validation' if that split exists, else 'test'
    score: float  # the accuracy by which it was chosen
    stage: int
    round: int
    models: dict  # the server's `SparseModel`s by name, with NumPy leaves


class Snapshot(NamedTuple):
    """A run at the end of a segment: all that is needed to continue.

    The buffers of `state` are donated to the next segment, so save it before.
    """

    stage: int = 0
    round: int = 0  # completed rounds of the stage
    # A `State`; when resuming, a function of its shapes, with a `rows.Saved`.
    state: Any = None
    bits: int = 0  # since the start, both ways
    flops: float = 0.0  # since the start, at the masks
    best: Best | None = None
    ended_by: str = ""  # 'rounds' or the name of a limit; '' while the run goes on
    hours: float | None = None  # of virtual time since the start; None: no system

    def costs(self) -> dict[str, float]:
        """Returns what the run has cost, by the name of the limit on it in `Limits`."""
        costs = {"gbit": self.bits / 1e9, "pflop": self.flops / 1e15}
        return costs if self.hours is None else costs | {"hours": self.hours}


class Saved(NamedTuple):
    """A checkpoint that `read` found."""

    snapshot: Snapshot  # its state is a function of the shapes
    models: dict[str, SparseModel]
    about: dict  # all that is beside the arrays


def save(workdir: Path, snapshot: Snapshot, models: dict, about: dict) -> None:
    """Replaces the checkpoint of a run; the old one stays until the new one is whole.

    Args:
      workdir: the run's directory.
      snapshot: the progress of the run.
      models: the models that it deploys.
      about: further fields to keep, JSON values.

    Raises:
      OSError: it cannot be written, for example because the disk is full or a number in
        `about` is not finite.
    """
    import orbax.checkpoint as ocp

    best, (state, clients) = snapshot.best, _split(snapshot.state)
    arrays = {"state": _flat(state), "models": _nest(models)}
    order = {"models": list(models)}  # orbax sorts names, but the first one is special
    if best is not None:
        arrays["best"], order["best"] = _nest(best.models), list(best.models)
    about = about | {
        "format": FORMAT,
        "snapshot": snapshot._replace(
            state=None, best=best and best._replace(models={})
        ),
        "order": order,
        "checksums": {name: checksum(tree) for name, tree in arrays.items()},
        "clients": None,
    }
    items = {name: ocp.args.StandardSave(tree) for name, tree in arrays.items()}
    with blaming(f"{workdir / 'checkpoint'} could not be written", OSError):
        with _manager(workdir) as manager:
            step = (manager.latest_step() or 0) + 1
            if clients is not None:  # whole before the checkpoint that names it
                folder = workdir / "clients" / str(step)
                about["clients"] = rows.save(folder, clients)
            about["checksum"] = _checksum_of(about)
            items["about"] = ocp.args.JsonSave(about)
            manager.save(step, args=ocp.args.Composite(**items))
        for old in (workdir / "clients").glob("*"):  # foreign files stay
            ours = old.name.isdecimal() and old.is_dir() and not old.is_symlink()
            if ours and old.name != str(step):
                shutil.rmtree(old)


def read(workdir: Path, *, state: bool = True) -> Saved | None:
    """Reads the checkpoint of a run; None if it has none yet.

    Args:
      workdir: the run's directory.
      state: whether to read the state needed to continue, or only the models.

    Raises:
      ValueError: the checkpoint is damaged, or has another format.
    """
    path = workdir / "checkpoint"
    if not path.exists():
        return None
    with (
        blaming(f"{path} cannot be read"),
        _manager(workdir, read_only=True) as manager,
    ):
        step = manager.latest_step()
        if step is None:
            return None
        about = _item(manager, "about")
        if about["format"] != FORMAT:  # others may lack what follows
            found = about["format"]
            raise UserError(f"it has format {found}, expected {FORMAT}")
        if about["checksum"] != _checksum_of(about):
            raise UserError("a checksum differs")
        sums, clients = about["checksums"], workdir / "clients" / str(step)
        wanted = [name for name in sums if state or name != "state"]
        arrays = {name: _item(manager, name) for name in wanted}
        if any(checksum(arrays[name]) != sums[name] for name in arrays):
            raise UserError("a checksum differs")
        manifest = about["clients"]
        if state and manifest and not rows.is_intact(clients, manifest):
            raise UserError(f"a checksum in {clients} differs")
        return _save(arrays, about, clients)


def _checksum_of(about: dict) -> int:
    """Returns the CRC-32 of all other fields."""
    others = {name: value for name, value in about.items() if name != "checksum"}
    text = json.dumps(others, sort_keys=True, allow_nan=False)
    return zlib.crc32(text.encode())


def checksum(tree: PyTree) -> int:
    """Computes a CRC-32 over all leaves and their paths."""
    total = 0
    for path, leaf in trees.by_path(tree).items():
        leaf = np.asarray(leaf)
        head = f"{path} {leaf.dtype} {leaf.shape}".encode()
        total = zlib.crc32(np.ascontiguousarray(leaf), zlib.crc32(head, total))
    return total


def _split(state):
    """Splits a state into the part that orbax stores and the clients' rows, if any.

    Of a store, rows of clients that never took part are not written. The state holds
    the server from which they are made in their place.
    """
    clients = state.clients
    if isinstance(clients, rows.Store):
        return state._replace(clients=clients.first), clients
    if not any(leaf.size for leaf in jax.tree.leaves(clients)):
        return state, None
    return state._replace(clients=()), clients


def _save(arrays: dict, about: dict, folder: Path) -> Saved:
    def state(shapes):
        manifest = about["clients"]
        if manifest is None:
            state = _unflat(arrays["state"], shapes)
            everyone = np.arange(len(state.last_round), dtype=np.int32)
            nothing = rows.Saved(state.server, everyone, state.clients)
            return state._replace(clients=nothing)
        ids, kept = rows.load(folder, manifest, shapes.clients)
        first = shapes.server if manifest["some"] else ()
        state = _unflat(arrays["state"], shapes._replace(clients=first))
        first = state.clients if manifest["some"] else state.server
        return state._replace(clients=rows.Saved(first, ids, kept))

    models = {name: _models(arrays[name], of) for name, of in about["order"].items()}
    at = Snapshot(*about["snapshot"])
    best = at.best and Best(*at.best)._replace(models=models["best"])
    return Saved(at._replace(state=state, best=best), models["models"], about)


def _flat(tree: PyTree) -> dict[str, np.ndarray]:
    """Returns the leaves by path, without empty ones, which orbax refuses."""
    leaves = trees.by_path(tree).items()
    return {path: np.asarray(leaf) for path, leaf in leaves if leaf.size}


def _unflat(flat: dict, shapes) -> PyTree:
    """Inverts `_flat`; raises a ValueError on other paths, shapes or dtypes."""
    full = trees.by_path(shapes)
    there, here = (
        {path: (leaf.shape, leaf.dtype) for path, leaf in tree.items() if leaf.size}
        for tree in (flat, full)
    )
    if there != here:
        path = min(p for p, _ in there.items() ^ here.items())
        raise UserError(f"the checkpoint does not fit this run: {path} differs")
    leaves = [
        flat[path] if path in flat else np.zeros(leaf.shape, leaf.dtype)
        for path, leaf in full.items()
    ]
    return jax.tree.unflatten(jax.tree.structure(shapes), leaves)


def _nest(models: dict[str, SparseModel]) -> dict:
    """Returns models as nested dictionaries of arrays, without empty entries."""
    nested = {}
    for name, model in models.items():
        parts = jax.tree.map(np.asarray, model)._asdict().items()
        nested[name] = {part: tree for part, tree in parts if jax.tree.leaves(tree)}
    return nested


def _models(nested: dict, order) -> dict[str, SparseModel]:
    """Inverts `_nest`; keeps the order of the names."""
    return {
        name: SparseModel(*(nested[name].get(part, {}) for part in SparseModel._fields))
        for name in order
    }


@functools.cache  # once, as orbax's threads may end long after a failure
def _quiet() -> None:
    """Keeps back what orbax prints of failures; the caller reports them, in a line."""
    old_hook = sys.unraisablehook

    def hook(unraisable):
        if str(unraisable.exc_value) != "Event loop is closed":
            old_hook(unraisable)

    sys.unraisablehook = hook
    logging.getLogger("absl").addFilter(lambda record: "orbax" not in record.pathname)


@contextlib.contextmanager
def _manager(workdir: Path, read_only: bool = False):
    """Opens orbax's manager of the run's one checkpoint; it writes synchronously."""
    import orbax.checkpoint as ocp

    _quiet()
    process = jax.process_index()  # orbax would wait for all processes
    alone = ocp.options.MultiprocessingOptions(
        primary_host=process,
        active_processes={process},
        barrier_sync_key_prefix=f"process{process}",
    )
    path = (workdir / "checkpoint").absolute()
    if not read_only:
        path.mkdir(exist_ok=True)  # which orbax does for all processes only
    options = ocp.CheckpointManagerOptions(
        create=False,
        max_to_keep=None if read_only else 1,
        enable_async_checkpointing=False,
        read_only=read_only,
        multiprocessing_options=alone,
    )
    with ocp.CheckpointManager(path, options=options) as manager:
        yield manager


def _item(manager: Any, name: str) -> Any:
    """Reads an item of the checkpoint; `about` is JSON, the others are arrays."""
    import orbax.checkpoint as ocp

    kind = ocp.args.JsonRestore if name == "about" else ocp.args.StandardRestore
    step = manager.latest_step()
    return manager.restore(step, args=ocp.args.Composite(**{name: kind()}))[name]
