"""FedMef: clients squeeze the weights that the server is about to prune.

Huang, Zhuang, Chen and Lyu, "FedMef: Towards Memory-efficient Federated Dynamic
Pruning", CVPR 2024, https://arxiv.org/abs/2403.14737: its budget-aware extrusion and
its activation pruning, without its normalised convolutions.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import optax
from jax import lax

from sparsefl_jax.algorithms.shared import masked
from sparsefl_jax.algorithms.shared.adjusting import Start, adjusting, steepness
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.types import Array, Count, Fraction, NonNegative, PyTree, Share
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import masks, top_k, trees
from sparsefl_jax.training import sparse_passes, through


@method
def fedmef(
    model: Model,
    optimizer: Optimizer,
    *,
    density: Share,
    adjust_every: Count = 10,
    adjust_until: Count = 300,
    prune_rate: Fraction = 0.4,
    penalty: NonNegative = 1e-4,
    keep_inputs: Share = 1.0,
    prune_by: Literal["received", "aggregate"] = "received",
    start: Start = "random",
    allocation: masked.Allocation = "erk",
    prunable: masks.Globs = masks.KERNELS,
    index: str = "packed",
) -> Algorithm:
    """FedTiny whose clients know beforehand which weights will be pruned.

    These are the k_l alive weights of each layer that are smallest in the model that
    was broadcast. In rounds that adjust, see `adjusting`, the local loss has the term
    `penalty` times their sum of squares, so that the others take over while they
    shrink. In step s of a client's B, from 0, the learning rate is the larger of the
    round's and of `(2 B - 2 s) / (2 B - s) (2 sigmoid(|w|) - 1)` times that of round 0,
    where |w| is the norm of these weights before the step. Under a constant rate that
    is always the round's. The server prunes them, and grows the k_l largest mean
    gradients among the entries that were pruned before, from 0.

    In all rounds, and for the gradient that names entries, the layers of prunable
    kernels save only the largest `keep_inputs` of their inputs for the gradient of the
    kernel. This saves memory, which is not recorded, and no FLOPs; the search for the
    largest inputs is not counted. The paper centres inputs by normalised convolutions
    in place of batch normalisation; here the network stays as it is.

    Packets and FLOPs are those of `fedtiny`.

    Args:
      model, density, adjust_every, adjust_until, prune_rate: as in `fedrts`.
      optimizer: the clients', as `local.make_optimizer` returns it. Its steps have to
        be proportional to its rate, as those of SGD with momentum and of Adam are.
      penalty: lambda.
      keep_inputs: the share of its inputs that a layer saves.
      prune_by: 'received' as above, or 'aggregate': the server prunes the k_l
        smallest weights of the aggregate, as FedTiny does.
      start, allocation, prunable, index: as in `fedrts`.

    Raises:
      ValueError: an argument is out of range, or a name is unknown.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = fedmef(model, optimizer, density=0.2, keep_inputs=0.5)
    """
    select = masks.prunable(model.macs, prunable)
    if keep_inputs < 1:  # static branch
        model = sparse_passes.saving(model, select, lambda kernel: keep_inputs)

    def squeezing(loss_fn, tx, received, doubt, batches):
        low = _smallest(received, doubt, select)

        def penalised(key, params, *rest):
            loss, others = loss_fn(key, params, *rest)
            return loss + penalty * _squares(params, low, select), others

        steps = through.num_steps(batches).astype(jnp.float32)
        return penalised, _at_larger_rate(tx, optimizer(0), low, steps, select)

    schedule = adjust_every, adjust_until, prune_rate
    options = density, schedule, start, allocation, prunable, index
    frozen, _, due, budget = adjusting(
        model, optimizer, *options, gradients=True, adapt=squeezing
    )

    def aggregate(key, ctx, server, total):
        mean = masked.averaged(server.model, total["mean"])
        scores = steepness(total, mean.params, select)

        def exchange():
            doubt = budget(scores, ctx.round)[1]
            pruned = server.model if prune_by == "received" else mean
            low = _smallest(pruned, doubt, select)
            holes = jax.tree.map(jnp.logical_not, mean.mask)
            grown = top_k.largest(scores, doubt, select, within=holes)
            # Both are True on leaves that are not selected, which stay dense.
            moves = mean.mask, low, grown
            return jax.tree.map(lambda m, gone, new: m & ~gone | new, *moves)

        mask = lax.cond(due(ctx.round), exchange, lambda: mean.mask)
        return masked.moved_if_heard(ctx, server, masks.pruned(mean, mask)), {}

    return frozen.replace(aggregate=aggregate)


def _smallest(model, count: Array, select: PyTree) -> PyTree:
    """Returns the mask of the `count` smallest alive weights of each layer."""
    scores = jax.tree.map(lambda w: -jnp.abs(w), model.params)
    return top_k.largest(scores, count, select, within=model.mask)


def _squares(params: PyTree, mask: PyTree, select: PyTree) -> Array:
    """Returns the sum of squares of the weights that a mask keeps, of all layers."""
    pairs = zip(trees.layers(params, select), trees.layers(mask, select), strict=True)
    squares = (jnp.sum(jnp.square(w), where=m) for w, m in pairs)
    return sum(squares, start=jnp.float32(0))


def _at_larger_rate(tx, first, low, steps, select) -> optax.GradientTransformation:
    """Returns `tx` at the larger of two rates: its own, or a share of `first`'s.

    As steps are proportional to the rate, this is the longer of two steps.

    Args:
      tx: the optimizer of this round.
      first: that of round 0; its state is like that of `tx`.
      low: bool, treedef of the parameters: the weights whose norm decides the share.
      steps: scalar float32, how many steps the client takes in this round.
      select: tree of Python bools, the prunable leaves.
    """

    def init(params):
        return tx.init(params), jnp.float32(0)

    def update(updates, state, params=None):
        state, step = state
        own, after = tx.update(updates, state, params)
        share = (2 * steps - 2 * step) / (2 * steps - step)
        share = share * jnp.tanh(jnp.sqrt(_squares(params, low, select)) / 2)
        raised = jax.tree.map(
            lambda u: share * u, first.update(updates, state, params)[0]
        )

        def longer(own, raised):
            return jnp.where(jnp.abs(raised) > jnp.abs(own), raised, own)

        return jax.tree.map(longer, own, raised), (after, step + 1)

    return optax.GradientTransformation(init, update)
