"""Width slicing: every hidden layer keeps ceil(p C) of its C channels.

A slice at rate p is a mask, so p may be traced and one program serves all widths. The
masked network computes what a network of that width computes: a channel that is cut is
exactly 0 behind its layer, and no layer reads it. The channels that stay follow each
other: a prefix, or a window that begins elsewhere and wraps around. Slices that begin
at the same channel nest.

`models.wiring` reads off the leaves how a network is wired: a layer has `kernel` and
`bias`, a normalisation `scale` and `bias` [C]. Where a residual sum adds channels, both
sides have the same window. The first layer reads the whole input, and the last, dense,
writes all classes.

Sources: Diao et al., HeteroFL, ICLR 2021, https://arxiv.org/abs/2010.01264; Horvath et
al., FjORD, NeurIPS 2021, https://arxiv.org/abs/2102.13451; Alam et al., FedRolex,
NeurIPS 2022, https://arxiv.org/abs/2212.01548.
"""

import jax
import jax.numpy as jnp

from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import Array, PyTree, SparseModel
from sparsefl_jax.models import wiring
from sparsefl_jax.sparsity import layer_densities, trees


def num_kept(rate: Array | float, channels: int) -> Array:
    """Returns the channels that a slice keeps: ceil(rate * channels).

    Args:
      rate: share of the width, scalar in (0, 1]; may be traced.
      channels: C.

    Returns:
      float32 scalar, a whole number.

    Example:
      >>> [int(num_kept(p, 20)) for p in (0.5, 0.55, 0.56, 1.0)]
      [10, 11, 12, 20]
    """
    product = jnp.asarray(rate, jnp.float32) * jnp.float32(channels)
    return layer_densities.ceil_count(product).astype(jnp.float32)


def window(params: PyTree, rate: Array | float, start: Array | int = 0) -> PyTree:
    """Returns the mask of a slice that keeps the channels from one on.

    Args:
      params: arrays or shapes of a chain or a residual network.
      rate: share of the width, scalar in (0, 1]; may be traced.
      start: int32 scalar, of any size and sign; may be traced. A layer of C channels
        keeps the channels start, start + 1, ..., all modulo C.

    Returns:
      A bool tree.

    Raises:
      ValueError: the network cannot be sliced.

    Example:
      >>> layers = {'fc1': (3, 4), 'fc2': (4, 2)}
      >>> params = {k: {'kernel': jnp.zeros(s)} for k, s in layers.items()}
      >>> window(params, 0.5, 3)['fc2']['kernel'].sum(1).tolist()
      [2, 0, 0, 2]
    """
    axes = _read(params)
    return trees.map_by_path(
        lambda path, leaf: _cut(leaf.shape, axes[path], rate, start), params
    )


def window_of_stats(
    stats: PyTree, rate: Array | float, start: Array | int = 0
) -> PyTree:
    """Returns the mask of a slice's normalisation statistics.

    Args:
      stats: arrays or shapes [C].
      rate, start: as in `window`.

    Returns:
      A bool tree.

    Raises:
      ValueError: a statistic has other axes.

    Example:
      >>> window_of_stats({'mean': jnp.zeros(4)}, 0.5, 3)['mean'].tolist()
      [True, False, False, True]
    """
    for path, leaf in trees.by_path(stats).items():
        if len(leaf.shape) != 1:
            raise UserError(f"statistic {path!r} has shape {leaf.shape}, expected [C]")
    return jax.tree.map(lambda leaf: _cut(leaf.shape, leaf.shape, rate, start), stats)


def _cut(
    shape: tuple[int, ...],
    axes: tuple[int, ...],
    rate: Array | float,
    start: Array | int,
) -> Array:
    """Returns the mask of one leaf."""
    mask = jnp.ones(shape, jnp.bool_)
    for axis, channels in enumerate(axes):
        if channels:
            channel = jnp.arange(shape[axis], dtype=jnp.int32) % channels
            place = (channel - start) % channels
            kept = place.astype(jnp.float32) < num_kept(rate, channels)
            others = [a for a in range(len(shape)) if a != axis]
            mask = mask & jnp.expand_dims(kept, others)
    return mask


def scale(params: PyTree, rate: Array | float) -> PyTree:
    """Divides what hidden layers compute by the rate, as HeteroFL's Scaler does.

    It divides weights and biases, which scales a layer's output before it is
    normalised. Normalisation and the classifier stay.

    Args:
      params: as in `window`.
      rate: scalar in (0, 1]; may be traced.

    Returns:
      A tree like `params`.

    Example:
      >>> layers = {'fc1': (1, 1), 'fc2': (1, 1)}
      >>> params = {k: {'kernel': jnp.ones(s)} for k, s in layers.items()}
      >>> scaled = scale(params, 0.5)
      >>> scaled['fc1']['kernel'].item(), scaled['fc2']['kernel'].item()
      (2.0, 1.0)
    """
    rate = jnp.asarray(rate, jnp.float32)
    *hidden, _ = wiring.layers(params)
    return trees.map_by_path(
        lambda path, leaf: leaf / rate if _module(path) in hidden else leaf, params
    )


def num_classes(params: PyTree) -> int:
    """Returns the number of outputs of the classifier.

    Args:
      params: as in `window`.

    Example:
      >>> num_classes({'fc': {'kernel': jnp.zeros((3, 4))}})
      4
    """
    *_, head = wiring.layers(params).values()
    return head[-1]


def columns(params: PyTree, classes: Array) -> PyTree:
    """Returns the mask that keeps only the classifier's outputs of some classes.

    Args:
      params: as in `window`.
      classes: bool, one entry for each class; may be traced.

    Returns:
      A bool tree.

    Example:
      >>> params = {'fc': {'kernel': jnp.zeros((1, 2))}}
      >>> columns(params, jnp.array([True, False]))['fc']['kernel'].tolist()
      [[True, False]]
    """
    *_, head = wiring.layers(params)

    def keep(path, leaf):
        mask = classes if _module(path) == head else jnp.ones(1, jnp.bool_)
        axes = range(len(leaf.shape) - 1)
        return jnp.broadcast_to(jnp.expand_dims(mask, axes), leaf.shape)

    return trees.map_by_path(keep, params)


def check_sliceable(model: SparseModel) -> None:
    """Refuses a network whose slices are not networks of that width.

    Args:
      model: of arrays or shapes.

    Raises:
      ValueError: its layers form neither a chain nor a residual network, a leaf or a
        statistic is not of channels, or it normalises groups of channels, which a slice
        would cut.

    Example:
      >>> params = {'conv': {'kernel': jnp.zeros((3, 3, 1, 8))}}
      >>> check_sliceable(SparseModel(params, {}, {}))
      Traceback (most recent call last):
        ...
      sparsefl_jax.UserError: width slicing: the last layer, 'conv', is not a dense
      layer
    """
    window_of_stats(model.stats, 1.0)
    counted = {_module(path) for path in trees.leaf_paths(model.stats)}
    known = counted | wiring.layers(model.params).keys()
    for module in map(_module, _read(model.params)):
        if module not in known:
            raise UserError(
                f"width slicing: {module!r} normalises without statistics of "
                "its channels, expected norm 'batch', 'static' or None"
            )


def _module(path: str) -> str:
    """Returns a leaf's path without its own name."""
    return path.rpartition("/")[0]


def _read(params: PyTree) -> dict[str, tuple[int, ...]]:
    """Returns by path the channels along each axis of a leaf, 0 for one kept whole."""
    modules, kernels = wiring.modules(params), wiring.layers(params)
    last = next(reversed(kernels), None)
    if last is None or len(kernels[last]) != 2:
        what = "there is no" if last is None else f"the last layer, {last!r}, is not a"
        raise UserError(f"width slicing: {what} dense layer")
    axes = wiring.channels(kernels)
    written, found = {channels[-1] for channels in axes.values()}, {}
    for path, leaf in trees.by_path(params).items():
        module, _, name = path.rpartition("/")
        names, shape = modules[module].keys(), tuple(leaf.shape)
        if names <= {"kernel", "bias"} and module in kernels:
            found[path] = axes[module][0 if name == "kernel" else -1 :]
        elif names <= {"scale", "bias"} and shape[-1] in written:
            found[path] = shape[-1:]
        else:
            raise UserError(
                f"width slicing: leaf {path!r} of shape {shape}, expected kernels, "
                "biases and normalisations of channels"
            )
    return found
