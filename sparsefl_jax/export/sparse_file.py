"""Writes and reads sparse models as safetensors files, packed as on the network.

`wire.model_files` describes the format.
"""

from pathlib import Path
from typing import NamedTuple

import jax
import msgspec
import numpy as np

from sparsefl_jax import models
from sparsefl_jax.core.check import UserError, blame, check
from sparsefl_jax.core.extras import import_extra
from sparsefl_jax.core.types import PyTree, SparseModel
from sparsefl_jax.data import make_preprocess
from sparsefl_jax.sparsity import trees
from sparsefl_jax.system import files
from sparsefl_jax.wire import model_files, streams
from sparsefl_jax.wire import packets as codec
from sparsefl_jax.wire.positions import POSITIONS

INDEXES = ("none", *POSITIONS)


class Sizes(NamedTuple):
    """The sizes of a file in bytes; it consists of the payload and the header."""

    payload: int
    header: int
    dense: int  # parameters and statistics as float32, without any header


class Exported(NamedTuple):
    """The contents of a file."""

    sparse: SparseModel  # NumPy leaves
    # None if the file names no network of `models.MODELS`. It takes raw samples if
    # `reading` was given.
    model: models.Model | None
    # `axes`; `network`, `reading`, `run` of `save_sparse`; tuples are lists
    about: dict


def save_sparse(
    path: str | Path,
    sparse: SparseModel,
    *,
    index: str = "bitmap",
    network: dict | None = None,
    reading: dict | None = None,
    run: dict | None = None,
) -> Sizes:
    """Writes a sparse model; equal arguments give equal bytes.

    Args:
      path: the file; an existing one is replaced atomically.
      sparse: nested dicts of float32 arrays, NumPy or JAX. Entries outside the mask
        count as exact zeros.
      index: the code of the positions, of `INDEXES`; 'none' writes the zeros too.
      network: the arguments of `build_model`, with which the loader builds the network;
        None for no network.
      reading: the arguments of `make_preprocess`, so that the network takes raw
        samples; None if it takes preprocessed ones.
      run: further values to keep, as JSON.

    Returns:
      The `Sizes` of the file.

    Raises:
      ValueError: an argument is not as above, or safetensors is missing.
      OSError: the file cannot be written.

    Example:
      >>> import tempfile
      >>> params = {'fc1': {'kernel': np.ones((4, 8), np.float32)}}
      >>> mask = {'fc1': {'kernel': np.arange(32).reshape(4, 8) % 4 == 0}}
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     sizes = save_sparse(f'{folder}/model', SparseModel(params, mask, {}))
      ...     back = load_sparse(f'{folder}/model').sparse
      >>> sizes.payload, sizes.dense  # 8 values and a bitmap; 32 values
      (36, 128)
      >>> back.params['fc1']['kernel'][0].tolist()
      [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    """
    safetensors = import_extra("safetensors.numpy", "export", "an export")
    check("index", index, INDEXES)
    sparse = _check_leaves(sparse)
    stored = _encode(sparse, index)
    head = model_files.Head(
        model_files.FORMAT, index, _shapes(sparse.params), network, reading, run or {}
    )
    text = msgspec.json.encode(head, order="sorted", enc_hook=lambda v: v.tolist())
    content = safetensors.save(stored, {model_files.KEY: text.decode()})
    files.write_bytes(Path(path), content)
    payload = sum(array.nbytes for array in stored.values())
    dense = 4 * trees.num_entries((sparse.params, sparse.stats))
    return Sizes(payload, len(content) - payload, dense)


def load_sparse(path: str | Path) -> Exported:
    """Reads a file of `save_sparse` bit for bit.

    It needs nothing but the file; if that names a `pretrained_encoder`, also the folder
    of its weights, under the same path.

    Args:
      path: the file.

    Returns:
      The `Exported` model.

    Raises:
      ValueError: there is no such file, it is damaged or of another kind, its network
        cannot be built, or safetensors is missing.

    Example:
      >>> import tempfile
      >>> network = {"name": "mlp", "num_classes": 3, "input_shape": (4,)}
      >>> params, stats = models.build(**network).init(jax.random.key(0))
      >>> mask = jax.tree.map(lambda w: w > 0, params)
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     sparse = SparseModel(params, mask, stats)
      ...     sizes = save_sparse(f"{folder}/model", sparse, network=network)
      ...     exported = load_sparse(f"{folder}/model")
      >>> params, mask, stats = exported.sparse  # nested dicts, pruned weights are 0
      >>> x = np.ones((5, 4), np.float32)
      >>> logits, _ = exported.model.apply(params, stats, x, train=False)
      >>> logits.shape
      (5, 3)
    """
    import_extra("safetensors", "export", "an export")
    with blame(f"path={str(path)!r} cannot be read"):
        head, sparse = model_files.read_file(path)
        model = _network(head.network, head.reading)
    told = "axes", "network", "reading", "run"
    return Exported(sparse, model, {name: getattr(head, name) for name in told})


def _check_leaves(sparse: SparseModel) -> SparseModel:
    """Returns contiguous leaves after checking that a file can restore them."""
    sparse = jax.tree.map(lambda leaf: np.asarray(leaf, order="C"), sparse)
    if _shapes(sparse.params) != _shapes(sparse.mask):
        raise UserError("mask has other leaves than params, expected the same shapes")
    for part, tree in sparse._asdict().items():
        dtype = np.dtype("?" if part == "mask" else "f4")
        for path, leaf in trees.by_path(tree).items():
            if leaf.dtype != dtype:
                raise UserError(f"{part}/{path} is {leaf.dtype}, expected {dtype}")
    return sparse


def _shapes(tree: PyTree) -> dict[str, list[int]]:
    return {path: list(leaf.shape) for path, leaf in trees.by_path(tree).items()}


def _encode(sparse: SparseModel, index: str) -> dict[str, np.ndarray]:
    """Returns the tensors of the file by name."""
    params, masks, stats = map(trees.by_path, sparse)
    stored, packets = {f"stats/{path}": leaf for path, leaf in stats.items()}, {}
    for path, mask in masks.items():
        leaf = params[path]
        if index != "none":
            packets[f"params/{path}"] = codec.Packet(leaf, mask, index=index)
            continue
        stored[f"params/{path}"] = np.where(mask, leaf, np.float32(0))
        if not mask.all():
            packets[f"mask/{path}"] = codec.Packet(mask, bits=1)
    for name, packet in packets.items():
        stored[name] = np.frombuffer(streams.encode(packet), np.uint8)
    return stored


def _network(network: dict | None, reading: dict | None) -> models.Model | None:
    """Builds the model that a file names; None if this version has no such network."""
    if network is None or network["name"] not in models.MODELS:
        return None
    network = {k: tuple(v) if isinstance(v, list) else v for k, v in network.items()}
    model = models.build(**network)
    if reading is not None:
        model = model.with_preprocess(make_preprocess(**reading))
    return model
