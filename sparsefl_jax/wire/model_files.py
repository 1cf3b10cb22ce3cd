"""Reads files of sparse models, which `export.save_sparse` writes.

`params/PATH` is a uint8 tensor: the stream of `streams.encode` for that leaf and its
mask. Its length is the ledger's bits rounded up to bytes. Tensors without positions are
plain float32, which any reader of the format can use: all `stats/PATH`, and with the
index 'none' also `params/PATH`. With that index, `mask/PATH` holds one bit per entry of
every leaf with pruned entries.

The metadata in the file's header has one key, `sparsefl_jax`, with JSON: the format,
the index, the shapes, the order of axes, the arguments that rebuild the network, the
origin.
"""

import functools
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np
from flax import traverse_util

from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.extras import import_extra
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.wire import packets, streams

FORMAT, KEY = 1, "sparsefl_jax"


class Head(msgspec.Struct):
    """The header's description of a file."""

    format: int
    index: str
    shapes: dict[str, list[int]]
    network: dict[str, Any] | None
    reading: dict[str, Any] | None
    run: dict[str, Any]
    axes: str = "kernels [H, W, in, out] (HWIO) and [in, out], samples [H, W, C]"


def read_file(path: str | Path) -> tuple[Head, SparseModel]:
    """Reads a file of a sparse model bit for bit.

    Args:
      path: the file.

    Returns:
      Its description, and the model, nested dicts of NumPy leaves.

    Raises:
      ValueError: it is of another kind or another format, or safetensors is missing.
      Exception: whatever safetensors raises, if it is damaged.
    """
    safetensors = import_extra("safetensors", "export", "an export")
    with safetensors.safe_open(path, framework="numpy") as file:
        text = (file.metadata() or {}).get(KEY)
        if text is None:
            raise UserError("it holds no sparse model, expected a file of an export")
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    head = msgspec.json.decode(text, type=Head)
    if head.format != FORMAT:
        raise UserError(f"it has format {head.format}, expected {FORMAT}")
    return head, _model(head, stored)


def _model(head: Head, stored: dict[str, np.ndarray]) -> SparseModel:
    """Inverts the encoding of `save_sparse`."""
    params, mask = {}, {}
    for path, shape in head.shapes.items():
        array, bits = stored[f"params/{path}"], stored.get(f"mask/{path}")
        bools = jax.ShapeDtypeStruct(tuple(shape), np.bool_)
        mask[path] = np.ones(shape, bool)
        if head.index != "none":
            floats = jax.ShapeDtypeStruct(tuple(shape), np.float32)
            like = packets.Packet(floats, bools, index=head.index)
            packet = streams.decode(array.tobytes(), like)
            array, mask[path] = packet.values, packet.mask
        elif bits is not None:
            like = packets.Packet(bools, bits=1)
            mask[path] = streams.decode(bits.tobytes(), like).values
        params[path] = array
    nest = functools.partial(traverse_util.unflatten_dict, sep="/")
    stats = nest(dict(sorted(stored.items()))).get("stats", {})
    return SparseModel(nest(params), nest(mask), stats)
