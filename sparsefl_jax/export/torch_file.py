"""Writes models as safetensors files of a PyTorch state dict, without PyTorch."""

from pathlib import Path

import numpy as np

from sparsefl_jax.core.extras import import_extra
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.sparsity import masks, trees
from sparsefl_jax.system import files

_NAMES = {"kernel": "weight", "scale": "weight", "embedding": "weight"}
_NAMES |= {"mean": "running_mean", "var": "running_var"}


def save_torch(path: str | Path, sparse: SparseModel) -> None:
    """Writes a state dict; entries outside the mask are zeros.

    `module.load_state_dict(safetensors.torch.load_file(path))` reads it, if the
    module's layers have the names of this network's. A layer's `kernel`, `scale` or
    `embedding` is its `weight`; means and variances of normalisation are its buffers.
    Kernels [in, out] become [out, in], and [H, W, in, out], or of any other number of
    axes above two, [out, in, H, W]. A dense layer after a flattening still reads
    [H, W, C]: permute to that before `flatten`.

    Args:
      path: the file; an existing one is replaced atomically.
      sparse: nested dicts of float32 arrays, NumPy or JAX.

    Raises:
      ValueError: safetensors is missing.
      OSError: the file cannot be written.

    Example:
      >>> import tempfile
      >>> from safetensors.numpy import load_file
      >>> params = {"fc1": {"kernel": np.ones((2, 3), np.float32)}}
      >>> mask = {"fc1": {"kernel": np.array([[True, False, True]] * 2)}}
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     save_torch(f"{folder}/model", SparseModel(params, mask, {}))
      ...     state = load_file(f"{folder}/model")
      >>> state["fc1.weight"].tolist()
      [[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]
    """
    safetensors = import_extra("safetensors.numpy", "export", "an export")
    params = masks.apply(sparse.params, sparse.mask)
    leaves = trees.by_path(params) | trees.by_path(sparse.stats)
    tensors = {}
    for name, leaf in leaves.items():
        *layer, kind = name.split("/")
        if kind == "kernel":
            *space, above, below = range(leaf.ndim)
            leaf = np.transpose(leaf, (below, above, *space))
        key = ".".join((*layer, _NAMES.get(kind, kind)))
        tensors[key] = np.ascontiguousarray(leaf, np.float32)
    files.write_bytes(Path(path), safetensors.save(tensors, {"format": "pt"}))
