"""The checkpoint of a run: all that is needed to continue, and the models so far.

`checkpoint.npz` is replaced as a whole. It holds arrays by path, `state/...`,
`models/NAME/...` and `best/NAME/...`, each with the checksum that a zip file keeps of
its members, and as `about` a JSON text with the progress of the run, the hardware and
versions. Nothing is ever unpickled. Client states are kept in `clients/STEP/`, written
in blocks, see `rows`.

`FORMAT` is increased whenever older checkpoints can no longer be continued.
"""

import json
import os
import shutil
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.traverse_util import unflatten_dict

from sparsefl_jax.core.check import UserError, blame
from sparsefl_jax.core.types import PyTree, SparseModel
from sparsefl_jax.simulation import rows
from sparsefl_jax.sparsity import trees

FILE = "checkpoint.npz"
FORMAT = 2


class Best(NamedTuple):
    """The models of the best evaluation of the last stage."""

    accuracy: float  # or another measure, of the headline model, by the run's metric
    chosen_by: str  # 'validation' if that split exists, else 'test'
    score: float  # the value by which it was chosen
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
    best, (state, clients) = snapshot.best, _split(snapshot.state)
    arrays, kinds = trees.by_path({"state": state}), {"models": models}
    kinds |= {"best": best.models} if best else {}
    for kind, named in kinds.items():
        arrays |= trees.by_path({kind: {k: one._asdict() for k, one in named.items()}})
    about = about | {
        "format": FORMAT,
        "snapshot": snapshot._replace(
            state=None, best=best and best._replace(models={})
        ),
        # A name may have no array.
        "order": {kind: list(named) for kind, named in kinds.items()},
        "dtypes": {path: str(leaf.dtype) for path, leaf in arrays.items()},
        "clients": None,
    }
    path, steps = workdir / FILE, workdir / "clients"
    kept = [p for p in steps.glob("*") if p.name.isdecimal()]
    with blame(f"{path} could not be written", OSError):
        if clients is not None:  # whole before the checkpoint that names it
            about["step"] = 1 + max((int(p.name) for p in kept), default=0)
            about["clients"] = rows.save(steps / str(about["step"]), clients)
        text = json.dumps(about, allow_nan=False)
        temporary = path.with_suffix(".tmp")
        with open(temporary, "wb") as file:
            np.savez(file, about=np.frombuffer(text.encode(), np.uint8), **arrays)
        os.replace(temporary, path)
        for old in kept:  # foreign files stay
            shutil.rmtree(old)


def read(workdir: Path, *, state: bool = True) -> Saved | None:
    """Reads the checkpoint of a run; None if it has none yet.

    Args:
      workdir: the run's directory.
      state: whether to read the state needed to continue, or only the models.

    Raises:
      ValueError: the checkpoint is damaged, or has another format.
    """
    path = workdir / FILE
    if not path.exists():
        return None
    with blame(f"{path} cannot be read"), np.load(path) as file:
        about = json.loads(file["about"].tobytes())
        if about["format"] != FORMAT:  # others may lack what follows
            raise UserError(f"it has format {about['format']}, expected {FORMAT}")
        arrays = {
            name: file[name].view(dtype)
            for name, dtype in about["dtypes"].items()
            if state or not name.startswith("state/")
        }
        folder = workdir / "clients" / str(about.get("step"))
        manifest = about["clients"]
        if state and manifest and not rows.is_intact(folder, manifest):
            raise UserError(f"a checksum in {folder} differs")
        return _join(arrays, about, folder)


def checksum(tree: PyTree) -> int:
    """Computes a CRC-32 over all leaves and their paths."""
    total = 0
    for path, leaf in trees.by_path(tree).items():
        leaf = np.asarray(leaf)
        head = f"{path} {leaf.dtype} {leaf.shape}".encode()
        total = zlib.crc32(np.ascontiguousarray(leaf), zlib.crc32(head, total))
    return total


def _split(state):
    """Splits a state into the part in one file and the clients' rows, if any.

    Of a store, rows of clients that never took part are not written. The state holds
    the server from which they are made in their place.
    """
    clients = state.clients
    if isinstance(clients, rows.Store):
        return state._replace(clients=clients.first), clients
    if not any(leaf.size for leaf in jax.tree.leaves(clients)):
        return state, None
    return state._replace(clients=()), clients


def _join(arrays: dict, about: dict, folder: Path) -> Saved:
    """Inverts what `save` does, but for the state, whose shapes only the run knows."""
    parts = unflatten_dict(arrays, sep="/")

    def state(shapes):
        manifest = about["clients"]
        if manifest is None:
            state = _fit(parts["state"], shapes)
            everyone = np.arange(len(state.last_round), dtype=np.int32)
            nothing = rows.Saved(state.server, everyone, state.clients)
            return state._replace(clients=nothing)
        ids, kept = rows.load(folder, manifest, shapes.clients)
        first = shapes.server if manifest["some"] else ()
        state = _fit(parts["state"], shapes._replace(clients=first))
        first = state.clients if manifest["some"] else state.server
        return state._replace(clients=rows.Saved(first, ids, kept))

    def models(kind):
        found, names = parts.get(kind, {}), about["order"][kind]
        empty = dict.fromkeys(SparseModel._fields, {})
        return {name: SparseModel(**empty | found.get(name, {})) for name in names}

    at = Snapshot(*about["snapshot"])
    best = at.best and Best(*at.best)._replace(models=models("best"))
    return Saved(at._replace(state=state, best=best), models("models"), about)


def _fit(nested: dict, shapes) -> PyTree:
    """Returns a state of these shapes; raises a UserError on others."""
    leaves, full = trees.by_path(nested), trees.by_path(shapes)
    there, here = (
        {path: (leaf.shape, leaf.dtype) for path, leaf in each.items()}
        for each in (leaves, full)
    )
    if there != here:
        path = min(p for p, _ in there.items() ^ here.items())
        raise UserError(f"the checkpoint does not fit this run: {path} differs")
    in_order = [leaves[path] for path in full]
    return jax.tree.unflatten(jax.tree.structure(shapes), in_order)
