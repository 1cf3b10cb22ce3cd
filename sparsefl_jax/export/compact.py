"""Removes pruned filters: a smaller dense network with the same outputs.

A filter whose kernel is zero outputs the same value everywhere, c = relu(norm(bias)).
So it can be removed together with the weights that read it. If c = 0 for all of them,
this is enough. Otherwise the removed channels of a layer become one channel that is 1
everywhere; its outgoing weights are the sum over these channels of c times theirs. That
is exact after any pooling, and also at a zero-padded border, where a bias in the next
layer would not be.

In networks with shortcuts, only channels between the two convolutions of a block are
removed. The others meet in an addition and would have to be pruned in all branches.
"""

from typing import Any

import jax
import numpy as np
from flax import traverse_util

from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.models.base import Model
from sparsefl_jax.models.layers import BatchNorm
from sparsefl_jax.models.registry import build
from sparsefl_jax.models.wiring import Link, links
from sparsefl_jax.sparsity import masks, trees

# A channel is 1 everywhere, in training too, if these are 1 and its kernel and mean 0:
# 0 * factor + bias. No built-in layer has both a bias and a normalisation after it. Of
# a mask they are True.
_ONES = {"bias", "scale", "var", "batch_var"}


def compact(
    sparse: SparseModel,
    name: str,
    num_classes: int,
    input_shape: tuple[int, ...],
    **kwargs: Any,
) -> tuple[Model, SparseModel]:
    """Removes the pruned filters and neurons of a network without changing its outputs.

    An output of a layer is removed if its kernel is zero under the mask, or if the next
    layer reads it only with zero weights. The last layer keeps all outputs, and a layer
    with nothing left keeps one zero filter. Outputs are equal with `train=False`. In
    training, batch normalisation maps a zero filter to relu(bias) instead of c.

    Args:
      sparse: the network of one client or the server, NumPy or JAX arrays, float32.
      name, num_classes, input_shape: the arguments of `build`.
      **kwargs: further arguments of `build`.

    Returns:
      The smaller network, built with other `widths`, and its parameters, mask and
      statistics as NumPy arrays. The channel that replaces the removed ones is a filter
      whose mask is False.

    Raises:
      ValueError: the network takes no `widths`, or its layers are
        named neither as those of a chain nor of a residual network; `sparse` has other
        shapes; or a layer is normalised over several channels or after its activation.

    Example:
      >>> model = build("mlp", 10, (28, 28, 1))
      >>> params, stats = model.init(jax.random.key(0))
      >>> mask = jax.tree.map(lambda v: jax.numpy.ones(v.shape, bool), params)
      >>> mask["fc1"]["kernel"] = mask["fc1"]["kernel"].at[:, 40:].set(False)
      >>> sparse = SparseModel(params, mask, stats)
      >>> model, small = compact(sparse, "mlp", 10, (28, 28, 1))
      >>> small.params["fc1"]["kernel"].shape, model.macs["fc2"]["kernel"]
      ((784, 40), 5120)
    """
    params, stats = build(name, num_classes, input_shape, **kwargs).shapes()
    like = SparseModel(params, params, stats)
    for path, found, expected in trees.unlike(sparse, like):
        raise UserError(f"sparse holds {path} of shape {found}, expected {expected}")
    sparse = jax.tree.map(np.asarray, masks.prune(sparse, sparse.mask))
    flat = SparseModel(*(traverse_util.flatten_dict(t, sep="/") for t in sparse))
    shrinking = links(sparse.params, kwargs.get("variant"))
    for link in shrinking:
        after = f"{link.layer}/bias" in flat.params
        unknown = after or not _statistics(flat.stats, link)
        if f"{link.norm}/scale" in flat.params and unknown:
            raise UserError(
                f"model {name!r} normalises groups of channels, or after the "
                "activation, expected batch normalisation before it, or none"
            )
        _shrink(flat, link)
    widths = tuple(flat.params[f"{link.layer}/kernel"].shape[-1] for link in shrinking)
    model = build(name, num_classes, input_shape, **kwargs | {"widths": widths})
    small = SparseModel(*(traverse_util.unflatten_dict(t, sep="/") for t in flat))
    return model, small


def _statistics(stats: dict, link: Link) -> list[np.ndarray]:
    """Returns the mean and variance of the normalisation; [] if it has none."""
    paths = sorted(path for path in stats if path.startswith(f"{link.norm}/"))
    return [stats[path] for path in paths]


def _shrink(flat: SparseModel, link: Link) -> None:
    """Removes a layer's dead outputs and the weights that read them, in place."""
    kernel = flat.params[f"{link.layer}/kernel"]
    reader = f"{link.reader}/kernel"
    # A dense layer reads a flattened image, its channels fastest: [positions * C, O].
    shape, width = flat.params[reader].shape, kernel.shape[-1]
    rows = flat.params[reader].reshape(-1, width, shape[-1])
    alive = (kernel != 0).any(tuple(range(kernel.ndim - 1))) & (rows != 0).any((0, 2))
    constant = np.where(alive, 0, _constant(flat, link, width))
    merged = np.einsum("pco,c->po", rows, constant)[:, None]
    spare = bool(merged.any() or not alive.any())
    for tree in flat:
        for path, value in tree.items():
            owner, _, name = path.rpartition("/")
            if owner in (link.layer, link.norm):
                one = np.full_like(value[..., :1], name in _ONES)
                tree[path] = np.concatenate([value[..., alive], *[one] * spare], -1)
    for tree in (flat.params, flat.mask):
        rows = tree[reader].reshape(-1, width, shape[-1])
        last = merged.astype(rows.dtype)
        rows = np.concatenate([rows[:, alive], *[last] * spare], 1)
        tree[reader] = rows.reshape(*shape[:-2], -1, shape[-1])


def _constant(flat: SparseModel, link: Link, width: int) -> np.ndarray:
    """Returns what each output would be if its kernel were zero, float64 [C]."""
    params = flat.params
    value = np.zeros(width) + params.get(f"{link.layer}/bias", 0.0)
    if statistics := _statistics(flat.stats, link):
        mean, var = (v.astype(np.float64) for v in statistics)
        factor = params[f"{link.norm}/scale"] / np.sqrt(var + BatchNorm.epsilon)
        value = (value - mean) * factor + params[f"{link.norm}/bias"]
    return np.maximum(value, 0)
