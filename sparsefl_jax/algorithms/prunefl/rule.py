"""The reconfiguration of both stages, and the sums of gradients that it needs.

The result of the greedy rule is found without sorting, as the maximum of a ratio of
sums: Dinkelbach, "On Nonlinear Fractional Programming", Management Science 1967.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.flatten_util import ravel_pytree

from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import PyTree, SparseModel
from sparsefl_jax.sparsity import masks, top_k, trees
from sparsefl_jax.sparsity.layer_densities import floor_count, whole


def make_rule(
    select: PyTree,
    prune_rate: float,
    layer_time: tuple[float, ...] | None,
    constant_time: float,
    max_density: float,
) -> Callable:
    """Returns a reconfiguration: it decides which weights stay, go and come back.

    1. The floor(rate n_l) smallest of a layer's n_l alive weights may be pruned; the
       others stay, and so do the dense leaves.
    2. Weights that may be pruned and weights that are pruned are candidates, in the
       order of g^2 / c_l: the accumulated squared gradient over the time that a weight
       of layer l takes.
    3. Candidates join from the top as long as that increases (sum of g^2) /
       (`constant_time` + sum of c_l), both over all alive weights, and at most
       `max_density` of the prunable weights is alive. Ties join by layer, then index.

    A weight that was alive keeps its value, others start at 0.

    Args:
      select: tree of Python bools, the L prunable leaves, called layers here.
      prune_rate: share of a layer's alive weights that may be pruned, in [0, 1].
      layer_time: c_l > 0 of each layer, in tree order; None: 1 for all.
      constant_time: time of a round apart from the weights, in the unit of
        `layer_time`, at least 0.
      max_density: share of the prunable weights that may be alive, in (0, 1]. If more
        than that stay in step 1, none joins.

    Returns:
      `reconfigure(model: SparseModel, squared, halvings) -> SparseModel`; `squared` is
      a float32 tree like the parameters, the rate `prune_rate` * 0.5^`halvings`.

    Raises:
      ValueError: `layer_time` has not a number above 0 for each layer.

    Example:
      >>> rule = make_rule(select={'w': True}, prune_rate=0.5, layer_time=None,
      ...                  constant_time=1.0, max_density=1.0)
      >>> model = SparseModel({'w': jnp.array([3., 0., 1., 0.])},
      ...                     {'w': jnp.array([True, False, True, False])}, {})
      >>> rule(model, {'w': jnp.array([4., 3., 1., 1.])}, jnp.float32(0)).mask['w']
      Array([ True,  True, False, False], dtype=bool)
    """
    layers = trees.layer_paths(select)
    times = (1.0,) * len(layers) if layer_time is None else layer_time
    if len(times) != len(layers) or not all(0 < c < math.inf for c in times):
        raise UserError(f"{layer_time=}, expected numbers above 0 for {layers}")

    def reconfigure(model: SparseModel, squared: PyTree, halvings) -> SparseModel:
        sizes = trees.layer_sizes(model.params, select)
        rate = jnp.float32(prune_rate) * jnp.float32(0.5) ** halvings
        alive = masks.counts(model.mask, select)
        kept = alive - floor_count(rate * alive.astype(jnp.float32))
        stay = top_k.largest_alive(model, kept, select)
        room = whole(max_density, sizes.sum()) - jnp.sum(masks.counts(stay, select))
        join = _worthwhile(squared, stay, select, times, constant_time, room)
        mask = jax.tree.map(jnp.logical_or, stay, join)
        return masks.pruned(model, mask)

    return reconfigure


def _worthwhile(squared, stay, select, times, constant: float, room) -> PyTree:
    """Returns the mask of the weights that stay and of the candidates that join."""
    gain = trees.layers(squared, select)
    free = [~m for m in trees.layers(stay, select)]
    times = [jnp.float32(c) for c in times]
    others = jax.tree.leaves(trees.split(squared, select)[1])
    dense = sum((jnp.sum(g) for g in others), jnp.float32(0))
    worth = [
        jnp.where(f, g / c, jnp.float32(-1))
        for g, f, c in zip(gain, free, times, strict=True)
    ]

    def ratio(above):
        """Returns gain over time of staying weights and candidates worth more."""
        total, time = dense, jnp.float32(constant)
        for g, f, c, v in zip(gain, free, times, worth, strict=True):
            alive = ~f | (v > above)
            total += jnp.sum(jnp.where(alive, g, jnp.zeros_like(g)))
            time += c * jnp.sum(alive, dtype=jnp.int32).astype(jnp.float32)
        return jnp.where(time > 0, total / time, jnp.float32(0))

    # The greedy rule ends at the candidates worth more than the resulting ratio.
    above, _ = lax.while_loop(
        lambda pair: pair[1] > pair[0],
        lambda pair: (pair[1], ratio(pair[1])),
        (jnp.float32(-1), ratio(jnp.float32(jnp.inf))),
    )
    flat, unravel = ravel_pytree(worth)
    number = jnp.sum(flat > jnp.maximum(above, 0), dtype=jnp.int32)
    joined = top_k.top_k(flat, jnp.minimum(number, room))
    return trees.replace_layers(stay, select, unravel(joined))


def summing(power: int = 1) -> optax.GradientTransformation:
    """Returns an identity whose state is the sum of gradients to a power.

    Args:
      power: 1 for the sum of the gradients, 2 for the sum of their squares.

    Example:
      >>> tx = summing(2)
      >>> _, total = tx.update(jnp.float32(3.), tx.init(jnp.float32(0.)))
      >>> total.item()
      9.0
    """

    def init(params):
        return jax.tree.map(jnp.zeros_like, params)

    def update(updates, state, params=None):
        return updates, jax.tree.map(lambda t, g: t + g**power, state, updates)

    return optax.GradientTransformation(init, update)
