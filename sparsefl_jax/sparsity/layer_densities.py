"""How layers share a density, and how it is recalibrated.

Densities and counts are arrays `[L]` over the selected leaves, in tree order.

Sources: Evci et al., "Rigging the Lottery" (RigL), ICML 2020,
https://arxiv.org/abs/1911.11134 (ERK); Bibikar et al., FedDST, AAAI 2022,
https://arxiv.org/abs/2112.09824 (its ERK); Babakniya et al., FLASH, TMLR 2023,
https://arxiv.org/abs/2208.13092 (Eq. 3).
"""

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from sparsefl_jax.core.types import Array, PyTree
from sparsefl_jax.sparsity import trees

# A share times a number may miss a whole number by rounding, which must not change the
# count: by a few units in the last place of float64 on the host, of float32 if traced.
_HOST_SLACK, _SLACK = 1e-12, 2.0**-21


def floor_count(x: Array) -> Array:
    """Returns the floor of a float32 count, tolerating its rounding; int32.

    Example:
      >>> int(floor_count(jnp.float32(0.7) * jnp.float32(10)))
      7
    """
    return jnp.floor(x * jnp.float32(1 + _SLACK)).astype(jnp.int32)


def ceil_count(x: Array) -> Array:
    """Returns the ceiling of a float32 count, tolerating its rounding; int32.

    Example:
      >>> int(ceil_count(jnp.float32(0.1) * jnp.float32(30)))
      3
    """
    return jnp.ceil(x * jnp.float32(1 - _SLACK)).astype(jnp.int32)


def count_of(share: Array, size: Array | int) -> Array:
    """Returns int(p n) of a traced share, exact if p has up to six decimals; int32.

    A float32 tells such decimals apart, but its product with n may be off by one from
    tens of thousands on. Other shares are multiplied in float32.

    Args:
      share: p, float32 scalar in [0, 1]; may be traced.
      size: n, below 2^31, any shape; may be traced.

    Example:
      >>> int(count_of(jnp.float32(0.36), 11_164_352))  # 4 019 166.72
      4019166
    """
    scaled = jnp.asarray(share, jnp.float32) * jnp.float32(1e6)
    millionths = jnp.round(scaled).astype(jnp.int32)
    times, rest = divmod(size, 10**6)
    # By thousands, so that all products are below 2^31.
    part = (millionths // 1000 * rest + millionths % 1000 * rest // 1000) // 1000
    decimal = jnp.abs(scaled - jnp.round(scaled)) <= scaled * jnp.float32(2**-23)
    other = floor_count(share * jnp.float32(size))
    return jnp.where(decimal, millionths * times + part, other)


def uniform(params: PyTree, select: PyTree, density: float) -> np.ndarray:
    """Gives every layer the same density.

    Args:
      params: a tree of arrays or shapes.
      select: tree of Python bools.
      density: in (0, 1].

    Returns:
      `[L]` float64, on the host.

    Example:
      >>> uniform({'w': np.zeros((2, 3))}, {'w': True}, 0.5).tolist()
      [0.5]
    """
    return np.full(len(trees.layers(params, select)), density, np.float64)


def erk(params: PyTree, select: PyTree, density: float) -> np.ndarray:
    """Gives layers RigL's Erdos-Renyi-kernel densities, `density` over all together.

    A layer's raw density is the sum of its axes over their product. A layer whose
    scaled density would exceed 1 is dense, and the others share the rest.

    Args:
      params: a tree of arrays or shapes.
      select: tree of Python bools.
      density: of all layers together, (0, 1].

    Returns:
      `[L]` float64 in (0, 1], on the host.

    Example:
      >>> w = {'a': np.zeros((10, 10)), 'b': np.zeros((30, 10))}
      >>> print(erk(w, {'a': True, 'b': True}, 0.3).round(3))
      [0.4   0.267]
    """
    raw, sizes = _raw(params, select)
    scale, dense = _share(raw, np.ones(len(sizes)), sizes, density * sizes.sum())
    return np.where(dense, 1.0, scale * raw)


def erk_sparsity(params: PyTree, select: PyTree, density: float) -> np.ndarray:
    """Gives layers FedDST's densities, whose *sparsities* are scaled by one factor.

    A layer's sparsity is proportional to 1 - r, with r its raw density in `erk`, and so
    large layers get nearly the same density. A layer of n entries keeps at least one:
    a sparsity beyond 1 - 1 / n is cut to that, and the others share the rest. FedDST's
    released code leaves a layer alone whose sparsity would exceed 1.

    Args:
      params: a tree of arrays or shapes.
      select: tree of Python bools.
      density: of all layers together, (0, 1].

    Returns:
      `[L]` float64 in (0, 1], on the host.

    Example:
      >>> w = {'a': np.zeros((10, 10)), 'b': np.zeros((30, 10))}
      >>> print(erk_sparsity(w, {'a': True, 'b': True}, 0.3).round(3))
      [0.341 0.286]
    """
    raw, sizes = _raw(params, select)
    weight, least = np.maximum(1 - raw, 0), 1 / np.maximum(sizes, 1)
    scale, full = _share(weight, 1 - least, sizes, (1 - density) * sizes.sum())
    return np.where(full, least, 1 - scale * weight)


def _raw(params: PyTree, select: PyTree) -> tuple[np.ndarray, np.ndarray]:
    """Returns the raw densities and the sizes of layers, each [L]."""
    sizes = trees.layer_sizes(params, select)
    sums = [sum(x.shape) for x in trees.layers(params, select)]
    return np.array(sums, np.float64) / np.maximum(sizes, 1), sizes


def _share(
    weights: np.ndarray, most: np.ndarray, sizes: np.ndarray, total: float
) -> tuple[float, np.ndarray]:
    """Shares a number of entries among layers in proportion to weights.

    Returns:
      The factor of the weights, and the layers [L] that get their `most` instead.
    """
    full = np.zeros(len(sizes), bool)
    while True:
        left = total - (most * sizes)[full].sum()
        rest = (weights * sizes)[~full].sum()
        scale = left / rest if rest > 0 else 0.0
        above = ~full & (scale * weights > most)
        if not above.any():
            return scale, full
        full |= above


def counts(densities: ArrayLike, sizes: ArrayLike) -> np.ndarray:
    """Returns the whole entries of layers at densities, int(d_l n_l).

    Args:
      densities: `[..., L]` float64.
      sizes: `[L]`, entries of each layer.

    Returns:
      `[..., L]` int32, on the host.

    Example:
      >>> counts(np.array([0.3, 0.29]), np.array([10, 100])).tolist()
      [3, 29]
    """
    exact = np.asarray(densities, np.float64) * np.asarray(sizes)
    return np.floor(exact * (1 + _HOST_SLACK)).astype(np.int32)


def whole_up(densities: ArrayLike, sizes: ArrayLike) -> np.ndarray:
    """Returns what `counts` does, but rounded up, ceil(d_l n_l).

    Example:
      >>> whole_up(np.array([0.25, 0.07]), np.array([10, 100])).tolist()
      [3, 7]
    """
    exact = np.asarray(densities, np.float64) * np.asarray(sizes)
    return np.ceil(exact * (1 - _HOST_SLACK)).astype(np.int32)


def recalibrate(
    densities: Array, sizes: ArrayLike, density: Array | float, *, raises: bool = True
) -> Array:
    """Scales measured layer densities to a global density (FLASH, Eq. 3).

    `r = density * sum(k) / sum(d_l k_l)`, then `d_l = min(1, r d_l)`; no other layer
    gets what is clipped. Densities that are all 0 stay 0.

    Args:
      densities: `[L]` float32, as measured; may be traced.
      sizes: `[L]`, entries of each layer.
      density: the target; may be traced.
      raises: whether densities below the target are scaled up to it, as in stage 1.
        If not, r is at most 1: in later rounds the server's mask only gets sparser.

    Returns:
      `[L]` float32.

    Example:
      >>> measured, sizes = jnp.array([.2, .1]), np.array([10, 20])
      >>> print(recalibrate(measured, sizes, .2).round(3))
      [0.3  0.15]
      >>> print(recalibrate(measured, sizes, .2, raises=False).round(3))
      [0.2 0.1]
    """
    sizes = jnp.asarray(np.asarray(sizes, np.float32))
    held = jnp.sum(densities * sizes)
    ratio = jnp.asarray(density, jnp.float32) * jnp.sum(sizes)
    ratio = ratio / jnp.where(held > 0, held, jnp.float32(1))
    if not raises:  # static branch
        ratio = jnp.minimum(ratio, jnp.float32(1))
    return jnp.minimum(jnp.float32(1), ratio * densities)
