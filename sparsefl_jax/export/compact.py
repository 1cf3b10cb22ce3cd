"""Pruned filters taken out: a smaller dense network with the same outputs.

A filter whose kernel is zero gives the same value everywhere, c = relu(norm(bias)), so
it can go, and with it the inputs that read it. Where c = 0 that is all. Elsewhere the
removed channels of a layer become one channel that is 1 everywhere, whose outgoing
weights are the sum over them of c times their own. That is exact behind any pooling and
also at a zero-padded border, where a bias in the next layer would not be.

In networks with shortcuts only the channels between the two convolutions of a block
are taken out: those that meet in an addition would have to be pruned in all branches.
"""

import jax
import numpy as np
from flax import traverse_util

from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.models.base import Model
from sparsefl_jax.models.layers import BatchNorm
from sparsefl_jax.models.registry import build
from sparsefl_jax.models.wiring import Link, links
from sparsefl_jax.sparsity import trees

# What makes a channel 1 everywhere, in training too: 0 * factor + bias. No model here
# has both a bias and a normalisation behind it.
_ONES = {"kernel": 0, "bias": 1, "scale": 1}
_ONES |= {"mean": 0, "var": 1, "batch_mean": 0, "batch_var": 1}


def compact(
    sparse: SparseModel,
    name: str,
    num_classes: int,
    input_shape: tuple[int, ...],
    **kwargs,
) -> tuple[Model, SparseModel]:
    """Shrinks a network by its pruned filters and neurons, with equal outputs.

    Removed is an output of a layer whose kernel is zero under the mask, or that the
    next layer reads with zero weights alone. Outputs of the last layer stay. A layer
    with nothing left keeps one zero filter. Outputs are equal with `train=False`; in
    training, batch normalisation gives a zero filter relu(bias) instead of c.

    Args:
      sparse: the network, NumPy or JAX arrays, float32; not of several clients.
      name, num_classes, input_shape: as `build` took them.
      **kwargs: as `build` took them.

    Returns:
      The smaller network, built with other `widths`, and its parameters, mask and
      statistics as NumPy arrays. The channel that stands for the removed ones is a
      filter whose mask is False.

    Raises:
      ValueError: `name` is not one of `models.MODELS`: a network of your own cannot be
        built smaller by this; `sparse` has other shapes; or a layer is
        normalised over several channels, which pruned ones have a part in, or behind
        its activation.

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
    if not isinstance(name, str):
        raise ValueError(
            f"name={name!r:.60}, expected the name of a network of `build_model`; one "
            "of your own cannot be built again with other widths"
        )
    sparse = jax.tree.map(np.asarray, sparse)
    _check_shapes(sparse, build(name, num_classes, input_shape, **kwargs), name)
    sparse = sparse._replace(params=jax.tree.map(_masked, sparse.params, sparse.mask))
    flat = SparseModel(*(traverse_util.flatten_dict(t, sep="/") for t in sparse))
    shrinking = links(sparse.params, kwargs.get("variant"))
    for link in shrinking:
        if f"{link.norm}/scale" in flat.params and not _statistics(flat.stats, link):
            raise ValueError(
                f"norm={kwargs.get('norm')!r} of model {name!r} mixes channels, "
                "expected 'batch', 'static' or None to compact it"
            )
        if {f"{link.layer}/bias", f"{link.norm}/scale"} <= set(flat.params):
            raise ValueError(
                f"model {name!r} normalises behind the activation, expected one that "
                "does so before it"
            )
        _shrink(flat, link)
    widths = tuple(flat.params[f"{link.layer}/kernel"].shape[-1] for link in shrinking)
    model = build(name, num_classes, input_shape, **kwargs | {"widths": widths})
    small = SparseModel(*(traverse_util.unflatten_dict(t, sep="/") for t in flat))
    return model, small


def _check_shapes(sparse: SparseModel, model: Model, name: str) -> None:
    params, stats = jax.eval_shape(model.init, jax.random.key(0))
    for part, own in {"params": params, "mask": params, "stats": stats}.items():
        kinds = [
            dict(
                zip(trees.leaf_paths(t), map(np.shape, jax.tree.leaves(t)), strict=True)
            )
            for t in (getattr(sparse, part), own)
        ]
        for path in kinds[0] | kinds[1]:
            here, there = (kind.get(path) for kind in kinds)
            if here != there:
                raise ValueError(
                    f"sparse.{part} holds {path} of shape {here}, expected {there} as "
                    f"in model {name!r}"
                )


def _masked(value: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return np.where(mask, value, 0).astype(value.dtype)


def _statistics(stats: dict, link: Link) -> list[np.ndarray]:
    """Mean and variance of the normalisation; [] where it has none."""
    names = (("mean", "var"), ("batch_mean", "batch_var"))
    paths = ([f"{link.norm}/{name}" for name in pair] for pair in names)
    return next(([stats[p] for p in pair] for pair in paths if pair[0] in stats), [])


def _shrink(flat: SparseModel, link: Link) -> None:
    """Takes a layer's dead outputs out, and what reads them, in place."""
    kernel = flat.params[f"{link.layer}/kernel"]
    reader = f"{link.reader}/kernel"
    # A dense layer reads a flattened image, its channels fastest: [positions * C, O].
    shape, width = flat.params[reader].shape, kernel.shape[-1]
    rows, open_rows = (
        tree[reader].reshape(-1, width, shape[-1]) for tree in (flat.params, flat.mask)
    )
    alive = (kernel != 0).any(tuple(range(kernel.ndim - 1))) & (rows != 0).any((0, 2))
    constant = np.where(alive, 0, _constant(flat, link, width))
    merged = np.einsum("pco,c->po", rows, constant)[:, None]
    spare = bool(merged.any() or not alive.any())
    for tree in flat:
        for owner in (link.layer, link.norm):
            for path in [p for p in tree if p.rpartition("/")[0] == owner]:
                tree[path] = _cut(path, tree[path], alive, spare)

    def joined(rows, last):
        rows = np.concatenate([rows[:, alive], *[last] * spare], 1, dtype=rows.dtype)
        return rows.reshape(*shape[:-2], -1, shape[-1])

    flat.params[reader] = joined(rows, merged.astype(np.float32))
    flat.mask[reader] = joined(open_rows, merged != 0)


def _constant(flat: SparseModel, link: Link, width: int) -> np.ndarray:
    """What each output of the layer would be if its kernel were zero, float64 [C]."""
    params = flat.params
    value = np.zeros(width) + params.get(f"{link.layer}/bias", 0.0)
    if statistics := _statistics(flat.stats, link):
        mean, var = (v.astype(np.float64) for v in statistics)
        factor = params[f"{link.norm}/scale"] / np.sqrt(var + BatchNorm.epsilon)
        value = (value - mean) * factor + params[f"{link.norm}/bias"]
    return np.maximum(value, 0)


def _cut(path: str, value: np.ndarray, alive: np.ndarray, spare: bool) -> np.ndarray:
    """A leaf without the dead outputs; with one that is 1 everywhere where asked."""
    word = path.rpartition("/")[2]
    one = word != "kernel" if value.dtype == bool else _ONES[word]
    last = np.full_like(value[..., :1], one)
    return np.concatenate([value[..., alive], *[last] * spare], -1)
