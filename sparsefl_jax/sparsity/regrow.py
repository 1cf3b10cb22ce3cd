"""Prune and regrow: moves the alive entries of a mask during local training.

Source: Babakniya et al., "Revisiting Sparsity Hunting in Federated Learning" (FLASH),
TMLR 2023, https://arxiv.org/abs/2208.13092, as its released code executes it. The
scheme is that of Dettmers and Zettlemoyer, "Sparse Networks from Scratch", 2019. The
paper's prose suggests growth by magnitude, but growth is random, and an entry that the
same call has pruned may grow again: it then keeps its weight.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from sparsefl_jax.core.types import Array, Key, PyTree, SparseModel
from sparsefl_jax.sparsity import masks, top_k, trees
from sparsefl_jax.sparsity.layer_densities import ceil_count

# A layer less sparse than the first may keep more than the rate has; growth fills at
# most the second, a share, of a layer's holes.
_LOW_SPARSITY, _FILL, _MAX_SPREADS = 0.2, 0.99, 1000


class Carry(NamedTuple):
    """What one call leaves for the next, so that the density does not drift.

    With `miss = target - alive` after a call, the next call grows `growth` more:
    `growth <- 0.25 growth + 0.75 miss + mean(misses so far)`, as the code executes it.
    """

    target: Array  # shape=(), float32: alive entries that all layers should have
    growth: Array  # shape=(), float32: correction of the next call, 0 at first
    miss_sum: Array  # shape=(), float32
    calls: Array  # shape=(), float32


def start_carry(params: PyTree, select: PyTree, density: Array | float) -> Carry:
    """Returns the carry of a first call, whose target is a density.

    Args:
      params: a tree of arrays or shapes.
      select: tree of Python bools, the prunable leaves.
      density: share of all selected entries that should be alive; may be traced.

    Returns:
      A `Carry` without corrections.

    Example:
      >>> start_carry({'w': jnp.zeros(10)}, {'w': True}, 0.5).target.item()
      5.0
    """
    size = jnp.float32(trees.layer_sizes(params, select).sum())
    zero = jnp.float32(0)
    return Carry(jnp.asarray(density, jnp.float32) * size, zero, zero, zero)


def prune_rate(
    rate: float, step: Array, num_steps: Array, *, decay: bool = True
) -> Array:
    """Returns the prune rate after some of a client's local steps.

    Args:
      rate: at the start, 0.25 in FLASH.
      step: steps made so far, the latest included; may be traced.
      num_steps: the client's steps of this round; may be traced.
      decay: whether the rate falls linearly to 0 at the last step, or is constant.

    Returns:
      float32 scalar.

    Example:
      >>> float(prune_rate(0.25, 9, 16))  # FLASH, E = 1, after batch index 8 of 16
      0.109375
      >>> float(prune_rate(0.25, 9, 16, decay=False))
      0.25
    """
    if not decay:  # static branch
        return jnp.float32(rate)
    done = step / jnp.maximum(num_steps, 1)
    return jnp.float32(rate) * jnp.maximum(1 - done, 0)


def prune_regrow(
    key: Key, params: PyTree, mask: PyTree, rate: Array, *, select: PyTree, carry: Carry
) -> tuple[PyTree, PyTree, Carry]:
    """Prunes the smallest weights of each layer, and regrows as many over all layers.

    1. A layer's share v_l is its mean alive magnitude, normalised over layers.
    2. Its rate r_l is `rate`, or at most its sparsity where that is below 0.2 and the
       share is above average.
    3. The ceil(r_l nnz_l) smallest alive weights are pruned, ties by lowest index. If
       that is none, alive weights that are exactly 0 are pruned without being counted.
    4. Layer l regrows ceil(v_l (all pruned + carry.growth)) entries, at most 0.99 of
       its holes; the excess is spread equally over the layers.
    5. Each hole grows with the probability that makes this the expected number.

    Args:
      key: a typed key, for the growth.
      params: float32 tree, 0 outside the mask.
      mask: bool tree; total.
      rate: float32 scalar in [0, 1]; may be traced.
      select: tree of Python bools, the prunable leaves.
      carry: from `start_carry`, or from the call before.

    Returns:
      The parameters within the new mask, the mask, and the carry of the next call. An
      entry that was pruned and grows again keeps its weight; an old hole starts at 0.

    Example:
      >>> w, m = {'w': jnp.array([1., -3., 0., 2.])}, {'w': jnp.arange(4) != 2}
      >>> carry = start_carry(w, {'w': True}, 0.75)
      >>> new, grown, _ = prune_regrow(jax.random.key(0), w, m, 0.25,
      ...                              select={'w': True}, carry=carry)
      >>> bool((new['w'] == w['w'] * grown['w']).all())
      True
    """
    weights, alive = trees.layers(params, select), trees.layers(mask, select)
    size = jnp.asarray(trees.layer_sizes(mask, select), jnp.float32)
    before = masks.counts(mask, select)
    share = _shares(weights, alive, before)
    sparsity = (size - before.astype(jnp.float32)) / jnp.maximum(size, 1)
    gentle = (sparsity < _LOW_SPARSITY) & (share > 1 / len(weights))
    rates = jnp.where(gentle, jnp.minimum(sparsity, rate), rate)
    removed = ceil_count(rates * before.astype(jnp.float32))

    kept = [_prune(*each) for each in zip(weights, alive, removed, strict=True)]
    holes = size - before.astype(jnp.float32) + removed.astype(jnp.float32)
    wanted = share * (jnp.sum(removed).astype(jnp.float32) + carry.growth)
    wanted = jnp.maximum(ceil_count(wanted), 0).astype(jnp.float32)
    grown = jnp.floor(_spread(wanted, jnp.float32(_FILL) * holes))

    keys, new = jax.random.split(key, len(weights)), []
    for i, m in enumerate(kept):
        zeros = jnp.sum(~m, dtype=jnp.int32).astype(jnp.float32)
        chance = grown[i] / jnp.maximum(zeros, 1)
        new.append(m | masks.bernoulli_like(keys[i], chance, m))
    mask = trees.replace_layers(mask, select, new)
    return masks.apply(params, mask), mask, _next(carry, mask, select)


def exchange(
    model: SparseModel,
    scores: PyTree,
    kept: Array,
    alive: Array,
    *,
    select: PyTree,
    anywhere: bool = False,
) -> SparseModel:
    """Prunes the smallest weights of each layer, and grows the largest scores.

    What was just pruned competes with the other holes, as in RigL (Evci et al., ICML
    2020); scores are magnitudes of gradients there.

    Args:
      model: its parameters are 0 outside the mask.
      scores: float32 tree, the larger the better.
      kept: `[L]` int32, the alive weights of each layer to keep; may be traced.
      alive: `[L]` int32, the alive entries of each layer after growth; may be traced.
      select: tree of Python bools, the prunable leaves.
      anywhere: choose growth among all entries, as FedDST's released code does. A
        surviving weight that is chosen starts again at 0, and fewer entries are alive.

    Returns:
      The model within the new mask, 0 where an entry has grown.

    Example:
      >>> w, m = {'w': jnp.array([1., -3., 0.])}, {'w': jnp.arange(3) < 2}
      >>> n, g = jnp.array([1, 2]), {'w': jnp.array([0., 9., 5.])}
      >>> model = SparseModel(w, m, {})
      >>> new = exchange(model, g, n[:1], n[1:], select={'w': True})
      >>> new.params['w'].tolist(), new.mask['w'].tolist()
      ([0.0, -3.0, 0.0], [False, True, True])
    """
    stay = top_k.largest_alive(model, kept, select)
    holes = None if anywhere else jax.tree.map(jnp.logical_not, stay)
    missing = alive - masks.counts(stay, select)
    grown = top_k.keep_top(scores, missing, select, within=holes)
    old = jax.tree.map(lambda s, g, p: s & ~g if p else s, stay, grown, select)
    params = masks.apply(model.params, old)
    return SparseModel(params, jax.tree.map(jnp.logical_or, stay, grown), model.stats)


def _shares(weights: list, alive: list, count: Array) -> Array:
    """Returns the normalised mean alive magnitude of each layer, [L]; 0 if empty."""
    pairs = zip(weights, alive, strict=True)
    total = jnp.stack([jnp.sum(jnp.abs(w), where=m) for w, m in pairs])
    mean = total / jnp.maximum(count, 1).astype(jnp.float32)
    norm = jnp.sum(mean)
    return mean / jnp.where(norm > 0, norm, jnp.float32(1))


def _prune(weights: Array, mask: Array, removed: Array) -> Array:
    """Returns the mask without its `removed` smallest weights, or without zeros."""
    # Masked entries sort first, before zeros that have just grown.
    height = jnp.where(mask, jnp.abs(weights), jnp.float32(-1))
    zeros = jnp.sum(~mask, dtype=jnp.int32)
    pruned = ~top_k.top_k(-height, zeros + removed)
    return jnp.where(removed > 0, pruned, mask & (weights != 0))


def _spread(wanted: Array, most: Array) -> Array:
    """Caps what layers want, and spreads the excess equally until none is left; [L]."""

    def again(state):
        _, excess, i = state
        return (excess > 0) & (i < _MAX_SPREADS)

    def cap(state):
        given, excess, i = state
        asked = given + excess / given.size
        given = jnp.minimum(asked, most)
        return given, jnp.sum(asked - given), i + 1

    given = jnp.minimum(wanted, most)
    state = given, jnp.sum(wanted - given), jnp.int32(0)
    return jax.lax.while_loop(again, cap, state)[0]


def _next(carry: Carry, mask: PyTree, select: PyTree) -> Carry:
    """Returns the carry after a call that left this mask."""
    miss = carry.target - jnp.sum(masks.counts(mask, select)).astype(jnp.float32)
    calls, miss_sum = carry.calls + 1, carry.miss_sum + miss
    growth = 0.25 * carry.growth + 0.75 * miss + miss_sum / calls
    return Carry(carry.target, growth, miss_sum, calls)
