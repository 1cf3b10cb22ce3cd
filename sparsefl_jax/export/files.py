"""A sparse model as a safetensors file: tensor by tensor what a packet would carry.

`params/PATH` is a uint8 tensor, the stream that `streams.encode` gives of that leaf
with its mask; its length is the ledger's bits rounded up to bytes. What no positions
belong to is an ordinary float32 tensor of the same length, for any reader of the
format: all `stats/PATH`, and with the index 'none' `params/PATH`, beside which
`mask/PATH` holds one bit per entry where anything is pruned.

The metadata in the file's header has one key, `sparsefl_jax`, with JSON: the format,
the index, the shapes, what rebuilds the network, what was exported, a checksum.
"""

import importlib.util
import json
import math
import os
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from sparsefl_jax import models
from sparsefl_jax.core import formats
from sparsefl_jax.core.types import PyTree, SparseModel
from sparsefl_jax.core.validate import one_of
from sparsefl_jax.data import make_preprocess
from sparsefl_jax.runs import cli
from sparsefl_jax.sparsity import trees
from sparsefl_jax.system import files
from sparsefl_jax.wire import packets as codec
from sparsefl_jax.wire import streams

FORMAT = 1
INDEXES = ("none", *codec.POSITIONS)
_KEY = "sparsefl_jax"


class Tensor(NamedTuple):
    """What one tensor of a file takes."""

    name: str
    shape: tuple[int, ...]  # of the leaf
    alive: int  # entries that are written
    bits: int  # the ledger's
    payload: int  # bytes in the file


class Sizes(NamedTuple):
    """What a file takes, in bytes: its payload and its header are all of it."""

    tensors: tuple[Tensor, ...]
    payload: int
    header: int
    dense: int  # parameters and statistics as float32, without any header


class Exported(NamedTuple):
    """What a file holds."""

    sparse: SparseModel  # NumPy leaves
    model: models.Model | None  # takes raw samples; None where no network was named
    about: dict  # `network`, `reading` and `run`, as they were given
    sizes: Sizes


def save_sparse(
    path: str | Path,
    sparse: SparseModel,
    *,
    index: str = "bitmap",
    network: dict | None = None,
    reading: dict | None = None,
    run: dict | None = None,
) -> Sizes:
    """Writes a sparse model, the same bytes for the same arguments.

    Args:
      path: the file; replaced as a whole where there is one.
      sparse: nested dicts of float32 arrays, NumPy or JAX. Entries outside the mask are
        taken as exact zeros.
      index: how positions are written, of `INDEXES`; 'none' writes the zeros too.
      network: the arguments of `build_model`, for the loader to build it; None: none.
      reading: the arguments of `make_preprocess`, so that it takes raw samples; None:
        it takes the network's input.
      run: what else to keep, as JSON can hold it.

    Returns:
      What the file takes.

    Raises:
      ValueError: an argument is not as above, or safetensors is missing.

    Example:
      >>> import tempfile
      >>> params = {'fc1': {'kernel': np.ones((4, 8), np.float32)}}
      >>> mask = {'fc1': {'kernel': np.arange(32).reshape(4, 8) % 4 == 0}}
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     sizes = save_sparse(f'{folder}/model', SparseModel(params, mask, {}))
      ...     back = load_sparse(f'{folder}/model').sparse
      >>> sizes.tensors[0]
      Tensor(name='params/fc1/kernel', shape=(4, 8), alive=8, bits=288, payload=36)
      >>> back.params['fc1']['kernel'][0].tolist()
      [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    """
    _require_safetensors()
    from safetensors import numpy as safetensors

    one_of("index", index, INDEXES)
    sparse = _checked(sparse)
    packets = _packets(sparse, index)
    stored = {name: _stored(packet) for name, packet in packets.items()}
    head = {
        "format": FORMAT,
        "index": index,
        "shapes": _shapes(sparse.params),
        "network": network,
        "reading": reading,
        "run": run or {},
    }
    head["crc32"] = _checksum(head, stored)
    content = safetensors.save(stored, {_KEY: _json(head)})
    path = Path(path)
    files.write_bytes(path, content)
    return _sizes(packets, stored, len(content))


def load_sparse(path: str | Path) -> Exported:
    """Reads what `save_sparse` wrote, bit for bit; needs nothing but the file.

    Args:
      path: the file.

    Raises:
      ValueError: in one line, if there is no such file, it is damaged or not one of
        these, or safetensors is missing.

    Example:
      >>> load_sparse("no/such/file")
      Traceback (most recent call last):
        ...
      ValueError: path='no/such/file', expected a file that an export wrote
    """
    _require_safetensors()
    name = f"path={str(path)!r}"
    if not Path(path).is_file():
        raise ValueError(f"{name}, expected a file that an export wrote")
    try:
        head, stored = _read(Path(path))
        if head.pop("crc32") != _checksum(head, stored):
            raise ValueError("its checksum differs")
        sparse = _model(head, stored)
        sizes = _sizes(_packets(sparse, head["index"]), stored, os.path.getsize(path))
        about = {key: head[key] for key in ("network", "reading", "run")}
        model = _network(head["network"], head["reading"])
    except _ForeignError as error:
        raise ValueError(f"{name} {error}") from None
    except Exception as error:  # safetensors has a kind of its own, JSON another
        raise ValueError(f"{name} is damaged: {cli.one_line(error)}") from error
    return Exported(sparse, model, about, sizes)


def sizes_table(sizes: Sizes) -> str:
    """What a file takes, a line for each tensor and for the totals.

    Example:
      >>> print(sizes_table(Sizes((Tensor('params/w', (4,), 1, 36, 5),), 5, 95, 16)))
      tensor    shape  entries  written  ledger, bit  payload, byte
      params/w      4        4        1           36              5
      payload                                                     5
      header                                                     95
      file                                                      100
      dense                                                      16
    """
    rows = [("tensor", "shape", "entries", "written", "ledger, bit", "payload, byte")]
    for tensor in sizes.tensors:
        shape = "x".join(map(str, tensor.shape)) or "1"
        counts = math.prod(tensor.shape), *tensor[2:]
        rows.append((tensor.name, shape, *(f"{n:,}" for n in counts)))
    file = sizes.payload + sizes.header
    totals = {"payload": sizes.payload, "header": sizes.header, "file": file}
    for name, total in (totals | {"dense": sizes.dense}).items():
        rows.append((name, *[""] * 4, f"{total:,}"))
    return "\n".join(formats.align(rows))


class _ForeignError(Exception):
    """The file is whole, but not of this kind."""


def _require_safetensors() -> None:
    if importlib.util.find_spec("safetensors") is None:
        raise ValueError(
            "safetensors is missing, expected it to be installed: "
            "pip install 'sparsefl_jax[export]'"
        )


def _checked(sparse: SparseModel) -> SparseModel:
    """NumPy leaves; refuses what a file cannot give back."""
    sparse = SparseModel(*(jax.tree.map(np.asarray, tree) for tree in sparse))
    if _shapes(sparse.params) != _shapes(sparse.mask):
        raise ValueError("mask has other leaves than params, expected the same shapes")
    for part, tree in sparse._asdict().items():
        paths, leaves = trees.leaf_paths(tree), jax.tree.leaves(tree)
        dtype = np.dtype(bool if part == "mask" else np.float32)
        for path, leaf in zip(paths, leaves, strict=True):
            if leaf.dtype != dtype:
                raise ValueError(f"{part}/{path} is {leaf.dtype}, expected {dtype}")
        nested = _nest(dict(zip(paths, leaves, strict=True)))
        if jax.tree.structure(nested) != jax.tree.structure(tree):
            raise ValueError(f"{part} is no nested dict, expected one of arrays")
    return sparse


def _shapes(tree: PyTree) -> dict[str, list[int]]:
    leaves = zip(trees.leaf_paths(tree), jax.tree.leaves(tree), strict=True)
    return {path: list(leaf.shape) for path, leaf in leaves}


def _nest(flat: dict[str, Any]) -> dict:
    """Leaves by path as nested dicts."""
    nested = {}
    for path, leaf in flat.items():
        *parents, last = path.split("/")
        at = nested
        for parent in parents:
            at = at.setdefault(parent, {})
        at[last] = leaf
    return nested


def _packets(sparse: SparseModel, index: str) -> dict[str, codec.Packet]:
    """One packet for each tensor of the file, by its name."""
    packets = {}
    leaves = map(jax.tree.leaves, (sparse.params, sparse.mask))
    for path, leaf, mask in zip(trees.leaf_paths(sparse.params), *leaves, strict=True):
        if index != "none":
            packets[f"params/{path}"] = codec.Packet(leaf, mask, index=index)
            continue
        packets[f"params/{path}"] = codec.Packet(np.where(mask, leaf, np.float32(0)))
        if not mask.all():
            packets[f"mask/{path}"] = codec.Packet(mask, bits=1)
    stats = jax.tree.leaves(sparse.stats)
    for path, leaf in zip(trees.leaf_paths(sparse.stats), stats, strict=True):
        packets[f"stats/{path}"] = codec.Packet(leaf)
    return packets


def _stored(packet: codec.Packet) -> np.ndarray:
    """The array in the file: float32 as it is, anything else as a stream."""
    if packet.mask is None and packet.bits == 32:
        return np.ascontiguousarray(packet.values)
    return np.frombuffer(streams.encode(packet), np.uint8)


def _sizes(packets: dict, stored: dict[str, np.ndarray], file: int) -> Sizes:
    """What the file takes of these packets."""
    tensors = []
    for name, packet in packets.items():
        message = {name: packet}
        count = codec.count(message)
        bits = int(codec.bits(codec.layout(message), count).total)
        alive = int(count[name].entries.sum())
        shape = packet.values.shape
        tensors.append(Tensor(name, shape, alive, bits, stored[name].nbytes))
    payload = sum(tensor.payload for tensor in tensors)
    whole = (t for t in tensors if not t.name.startswith("mask/"))
    dense = sum(4 * math.prod(t.shape) for t in whole)
    return Sizes(tuple(tensors), payload, file - payload, dense)


def _json(head: dict) -> str:
    return json.dumps(head, sort_keys=True, default=lambda value: value.tolist())


def _checksum(head: dict, stored: dict[str, np.ndarray]) -> int:
    """CRC-32 over the header's entry and all arrays by name."""
    total = zlib.crc32(_json(head).encode())
    for name in sorted(stored):
        total = zlib.crc32(stored[name], zlib.crc32(name.encode(), total))
    return total


def _read(path: Path) -> tuple[dict, dict[str, np.ndarray]]:
    """The header's entry and all arrays of a file."""
    from safetensors import numpy, safe_open

    with safe_open(path, framework="numpy") as file:
        text = (file.metadata() or {}).get(_KEY)
    if text is None:
        raise _ForeignError("holds no sparse model, expected what an export wrote")
    head = json.loads(text)
    if head["format"] != FORMAT:
        raise _ForeignError(f"has format {head['format']}, expected {FORMAT}")
    return head, numpy.load_file(path)


def _model(head: dict, stored: dict[str, np.ndarray]) -> SparseModel:
    """The inverse of `_packets` and `_stored`."""
    params, mask = {}, {}
    for path, shape in head["shapes"].items():
        array, bits = stored[f"params/{path}"], stored.get(f"mask/{path}")
        some = jax.ShapeDtypeStruct(tuple(shape), np.bool_)
        mask[path] = np.ones(shape, bool)
        if head["index"] != "none":
            like = jax.ShapeDtypeStruct(some.shape, np.float32)
            like = codec.Packet(like, some, index=head["index"])
            packet = streams.decode(array.tobytes(), like)
            array, mask[path] = packet.values, packet.mask
        elif bits is not None:
            like = codec.Packet(some, bits=1)
            mask[path] = streams.decode(bits.tobytes(), like).values
        params[path] = array
    stats = {
        name.removeprefix("stats/"): array
        for name, array in sorted(stored.items())
        if name.startswith("stats/")
    }
    return SparseModel(_nest(params), _nest(mask), _nest(stats))


def _network(network: dict | None, reading: dict | None) -> models.Model | None:
    """The model that a file names; None where this version has no such."""
    if network is None or network["name"] not in models.MODELS:
        return None
    network = {k: tuple(v) if isinstance(v, list) else v for k, v in network.items()}
    model = models.build(**network)
    return model if reading is None else model.reading(make_preprocess(**reading))
