"""Methods whose server adjusts a mask of fixed size: FedTiny, FedMef and FedRTS.

FedTiny prunes by magnitude and grows by the clients' mean gradient: Huang et al.,
"Distributed Pruning Towards Tiny Neural Networks in Federated Learning", ICDCS 2023,
https://arxiv.org/abs/2212.01977, its progressive pruning. The choice of the first mask
among candidates is not here.

FedMef's clients squeeze the weights that the server is about to prune: Huang, Zhuang,
Chen and Lyu, "FedMef: Towards Memory-efficient Federated Dynamic Pruning", CVPR 2024,
https://arxiv.org/abs/2403.14737, its budget-aware extrusion and its activation pruning,
without its normalised convolutions.

FedRTS draws the mask from posteriors that votes of clients update: Huang et al.,
"FedRTS: Federated Robust Pruning via Combinatorial Thompson Sampling", NeurIPS 2025,
https://arxiv.org/abs/2501.19122.

Layer l always has K_l alive entries. In round t the k_l = int(r_t K_l) weakest of them,
but no more than the layer has pruned entries, are in doubt; r_t falls from `prune_rate`
to 0 in round `adjust_until` by half a cosine. In the rounds t > 0 below `adjust_until`
that are multiples of `adjust_every`, the server adjusts the mask. Clients then also
name the k_l pruned entries of each layer with the largest gradient, on the first batch
of their last epoch, at the trained weights.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from sparsefl_jax.algorithms import masked
from sparsefl_jax.core import types
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.types import Array, Key, PyTree, SparseModel
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import masks, regrow, schedules, top_k, trees
from sparsefl_jax.sparsity.layer_densities import counts
from sparsefl_jax.training import local, means, screening, sparse_passes
from sparsefl_jax.wire.packets import Packet, free_positions, pack_up, unpack_model

Start = Literal["random", "magnitude"]  # the first mask


@method
def fedtiny(
    model: Model,
    optimizer: Optimizer,
    *,
    density: types.Share,
    adjust_every: types.Count = 10,
    adjust_until: types.Count | None = None,
    rounds: types.Count = 500,
    prune_rate: types.Fraction = 0.4,
    start: Start = "random",
    allocation: masked.Allocation = "erk",
    prunable: masks.Globs = masks.KERNELS,
    index: str = "packed",
) -> Algorithm:
    """FedAvg within a mask whose weakest entries make room for the steepest ones.

    In rounds that adjust, see `adjusting`, clients name the k_l pruned entries of each
    layer with the largest gradients and send these. The server prunes the k_l smallest
    weights of the aggregate and grows the k_l largest mean gradients, from 0. No client
    names what the server prunes in the same round, so that comes back at once only if
    fewer than k_l mean gradients are not 0.

    Down and up: alive weights, dense leaves and statistics, float32; down the positions
    of a new mask; up, in rounds that adjust, the positions of the entries named and
    their gradients, float32. FLOPs: such a round is charged the dense gradient of a
    batch and n log2(n + 1) over the n prunable weights.

    Args:
      model, optimizer, density, adjust_every, adjust_until, rounds: as in `fedrts`.
      prune_rate, start, allocation, prunable, index: as in `fedrts`.

    Raises:
      ValueError: an argument is out of range, or a name is unknown.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = fedtiny(model, optimizer, density=0.2)
    """
    select = masks.prunable(model.macs, prunable)

    def move(old, mean, scores, alive, doubt):
        return regrow.exchange(mean, scores, alive - doubt, alive, select=select)

    schedule = adjust_every, adjust_until, rounds, prune_rate
    options = density, schedule, start, allocation, prunable, index
    return adjusting(model, optimizer, options, move=move)[0]


@method
def fedmef(
    model: Model,
    optimizer: Optimizer,
    *,
    density: types.Share,
    adjust_every: types.Count = 10,
    adjust_until: types.Count | None = None,
    rounds: types.Count = 500,
    prune_rate: types.Fraction = 0.4,
    penalty: types.NonNegative = 1e-4,
    keep_inputs: types.Share = 1.0,
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
      model, density, adjust_every, adjust_until, rounds: as in `fedrts`.
      optimizer: the clients', as `local.make_optimizer` returns it. Its steps have to
        be proportional to its rate, as those of SGD with momentum and of Adam are.
      prune_rate: as in `fedrts`.
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
        model = sparse_passes.with_inputs(model, select, lambda kernel: keep_inputs)

    def squeeze(loss_fn, tx, received, doubt, batches):
        low = _select_smallest(received, doubt, select)

        def penalise(key, params, *rest):
            loss, others = loss_fn(key, params, *rest)
            return loss + penalty * _squares(params, low, select), others

        steps = local.num_steps(batches).astype(jnp.float32)
        return penalise, _at_larger_rate(tx, optimizer(0), low, steps, select)

    def move(old, mean, scores, alive, doubt):
        low = _select_smallest(old if prune_by == "received" else mean, doubt, select)
        holes = jax.tree.map(jnp.logical_not, mean.mask)
        grown = top_k.keep_top(scores, doubt, select, within=holes)
        # Both are True on leaves that are not selected, which stay dense.
        moves = mean.mask, low, grown
        mask = jax.tree.map(lambda m, gone, new: m & ~gone | new, *moves)
        return masks.prune(mean, mask)

    schedule = adjust_every, adjust_until, rounds, prune_rate
    options = density, schedule, start, allocation, prunable, index
    return adjusting(model, optimizer, options, move=move, adapt=squeeze)[0]


class Server(NamedTuple):
    """The global model and the Beta posterior of each prunable entry."""

    model: SparseModel
    changed_at: Array  # shape=(), int32: first round whose broadcast carries the mask
    a: PyTree  # float32, prunable leaves; 1 plus the votes for an entry
    b: PyTree  # float32, the same against it


@method
def fedrts(
    model: Model,
    optimizer: Optimizer,
    *,
    density: types.Share,
    adjust_every: types.Count = 10,
    adjust_until: types.Count | None = None,
    rounds: types.Count = 500,
    prune_rate: types.Fraction = 0.4,
    gamma: types.Fraction = 0.5,
    vote_weight: types.Positive = 10.0,
    start: Start = "random",
    allocation: masked.Allocation = "erk",
    prunable: masks.Globs = masks.KERNELS,
    index: str = "packed",
) -> Algorithm:
    """FedAvg within a mask of K_l entries a layer that the server draws anew at times.

    An alive entry gets the vote X = (1 - gamma) [it is one of the K_l - k_l largest
    weights of the aggregate] + gamma (the share of the cohort, by samples, in whose
    weights it is). In rounds that adjust, see `adjusting`, clients also name the k_l
    pruned entries of each layer with the largest gradients, and a pruned entry gets X =
    (1 - gamma) / 2 + gamma (the share of the cohort that names it). Votes add
    `vote_weight` X to a and `vote_weight` (1 - X) to b; then the server draws from
    Beta(a, b) for every entry, and the K_l largest of each layer are the new mask. What
    grows starts at 0.

    Down and up: alive weights, dense leaves and statistics, float32; down the positions
    of a new mask; up, in rounds that adjust, the positions of the entries named. FLOPs:
    such a round is charged the dense gradient of a batch and n log2(n + 1) over the n
    prunable weights.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it.
      density: share of alive prunable weights; K_l = int(n_l d_l). The paper's density
        also counts the dense leaves.
      adjust_every: rounds between adjustments.
      adjust_until: the round in which the rate reaches 0; None: three fifths
        of the rounds, as in the paper.
      rounds: of the stage.
      prune_rate: share of the alive weights in doubt in round 0.
      gamma: how much clients' votes count beside the aggregate's.
      vote_weight: lambda.
      start: 'random', or 'magnitude' as in the released code: the first mask.
      allocation: as in `pdst`.
      prunable: globs of the leaves that can be pruned; the paper leaves the last layer
        dense.
      index: how positions are written, see `packets.Packet`.

    Raises:
      ValueError: an argument is out of range, or a name is unknown.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = fedrts(model, optimizer, density=0.2)
    """
    schedule = adjust_every, adjust_until, rounds, prune_rate
    options = density, schedule, start, allocation, prunable, index
    frozen, select, due, budget = adjusting(model, optimizer, options)

    def core(model, round):
        alive, doubt = budget(model.params, round)
        kept = top_k.largest_alive(model, alive - doubt, select)
        return trees.split(kept, select)[0]

    def init(key, start):
        ones, _ = trees.split(jax.tree.map(jnp.ones_like, start.params), select)
        return Server(*frozen.init(key, start), a=ones, b=ones)

    def contribute(ctx, uplink):
        strong = core(unpack_model(uplink), ctx.round), ctx.client.num_examples
        return frozen.contribute(ctx, uplink) | {"core": means.weighted_sum(*strong)}

    def aggregate(key, ctx, server, total):
        mean = masked.average(server.model, total["mean"])
        alive, strong = trees.split(mean.mask, select)[0], core(mean, ctx.round)
        strong_at = means.weighted_mean(total["core"])
        named_at = means.weighted_mean(total["grown"])

        def vote(alive, strong, strong_at, named_at):
            mine, theirs = jnp.where(alive, strong, 0.5), (strong_at, named_at)
            return gamma * jnp.where(alive, *theirs) + (1 - gamma) * mine

        def weigh(alive):
            return jnp.where(alive | due(ctx.round), jnp.float32(vote_weight), 0.0)

        x = jax.tree.map(vote, alive, strong, strong_at, named_at)
        weight = jax.tree.map(weigh, alive)
        a = jax.tree.map(lambda a, w, x: a + w * x, server.a, weight, x)
        b = jax.tree.map(lambda b, w, x: b + (w - w * x), server.b, weight, x)

        def draw():
            scores = trees.merge(beta_logits(key, a, b), mean.params)
            return top_k.keep_top(scores, budget(scores, ctx.round)[0], select)

        mask = jax.lax.cond(due(ctx.round), draw, lambda: mean.mask)
        new = masks.prune(mean, mask)
        return masked.move_if_heard(ctx, server, new, a=a, b=b), {}

    return frozen.replace(init, contribute, aggregate)


def adjusting(
    model, optimizer, options: tuple, move=None, adapt=lambda loss, tx, *_: (loss, tx)
) -> tuple[Algorithm, PyTree, Callable, Callable]:
    """Returns the parts of a method that adjusts its mask.

    Args:
      model, optimizer: as in `fedrts`.
      options: its `density`, its schedule of `adjust_every`, `adjust_until`, `rounds`
        and `prune_rate`, and its `start`, `allocation`, `prunable` and `index`.
      move: `(old, mean, steep, alive, doubt) -> SparseModel`, how the server adjusts
        the mean of the trained models by the magnitude `steep` of the mean gradient at
        the entries named, whose gradients then travel, float32; `old` was broadcast.
        None: the positions travel alone, and the method has an `aggregate` of its own.
      adapt: `(loss_fn, tx, received, doubt, batches) -> (loss_fn, tx)`, the loss and
        the optimizer of a client in a round, by default as they are; `doubt` is [L]
        int32, k_l in rounds that adjust, otherwise 0.

    Returns:
      method: it adjusts by `move`, if there is one.
      select: tree of Python bools, the prunable leaves.
      due: `(round) -> bool`, whether a round adjusts the mask.
      budget: `(params, round) -> (alive [L] int32, doubt [L] int32)`, K_l and k_l.
    """
    density, schedule, first, allocation, prunable, index = options
    adjust_every, adjust_until, rounds, prune_rate = schedule
    until = schedules.end(adjust_until, rounds, 3, 5)
    loss_fn, select = local.objective(model), masks.prunable(model.macs, prunable)
    counts = masked.layer_counts(allocation, density, select)
    rates = schedules.cosine(prune_rate, until)

    def due(round):
        return (round > 0) & (round % adjust_every == 0) & (round < until)

    def budget(params, round):
        alive, sizes = counts(params), trees.layer_sizes(params, select)
        doubt = jnp.asarray(in_doubt(rates, alive, sizes))
        return jnp.asarray(alive), doubt[jnp.minimum(round, until)]

    def init(key, start):
        scores = masks.uniform_scores(key, start.params, select)
        if first == "magnitude":  # static branch
            scores = jax.tree.map(jnp.abs, start.params)
        mask = top_k.keep_top(scores, counts(scores), select)
        return masked.Server(masks.prune(start, mask), jnp.int32(0))

    def update(key, ctx, downlink, client, batches):
        received, adjust = unpack_model(downlink), due(ctx.round)
        train_key, screen_key = jax.random.split(key)
        doubt = jnp.where(adjust, budget(received.params, ctx.round)[1], 0)
        loss, tx = adapt(loss_fn, optimizer(ctx.round), received, doubt, batches)
        trained = local.train(train_key, loss, tx, received, batches)

        def name():
            given = screen_key, loss_fn, trained, batches
            grads, work = screening.screen(*given, select=select)
            steep = jax.tree.map(jnp.abs, grads)
            pruned = jax.tree.map(jnp.logical_not, trained.model.mask)
            named = top_k.keep_top(steep, doubt, select, within=pruned)
            return masks.apply(grads, named), named, work

        blank = *optax.tree.zeros_like(received[:2]), trained.metrics["work"]
        grads, named, work = jax.lax.cond(adjust, name, lambda: blank)
        grads, named = (trees.split(tree, select)[0] for tree in (grads, named))
        uplink = pack_up(trained.model, received.mask, select, index=index)
        values, bits = (named, 0) if move is None else (grads, 32)
        free = free_positions(index)
        grown = Packet(values, named, True, adjust, bits, index, assumed=free)
        return uplink | {"grown": grown}, client, trained.metrics | {"work": work}

    def contribute(ctx, uplink):
        grown, mean = uplink["grown"], masked.summand(ctx, uplink)
        values = grown.mask if move is None else grown.values
        named = means.weighted_sum(values, ctx.client.num_examples * grown.sent)
        return {"mean": mean, "grown": named}

    def aggregate(key, ctx, server, total):
        mean = masked.average(server.model, total["mean"])
        steep = jax.tree.map(jnp.abs, means.weighted_mean(total["grown"]))
        steep = trees.merge(steep, mean.params)

        def adjust():
            return move(server.model, mean, steep, *budget(mean.params, ctx.round))

        new = jax.lax.cond(due(ctx.round), adjust, lambda: mean)
        return masked.move_if_heard(ctx, server, new), {}

    frozen = masked.spdst(model, optimizer, prunable=prunable, index=index)
    return frozen.replace(init, update, contribute, aggregate), select, due, budget


def in_doubt(rates: np.ndarray, alive: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Returns how many alive entries of each layer are in doubt in each round.

    Args:
      rates: [T] float64, r_t.
      alive: [L], K_l.
      sizes: [L], all entries of each layer.

    Returns:
      [T, L] int32, int(r_t K_l), at most the entries that are pruned.

    Example:
      >>> alive, sizes = np.array([50, 90]), np.array([100, 100])
      >>> in_doubt(np.array([0.4, 0.0]), alive, sizes).tolist()
      [[20, 10], [0, 0]]
    """
    wanted = counts(rates[:, None], alive)
    return np.minimum(wanted, sizes - alive).astype(np.int32)


def beta_logits(key: Key, a: PyTree, b: PyTree) -> PyTree:
    """Draws from Beta(a, b) for every entry, and returns the logits of the draws.

    They have the order of the draws, and none rounds to 1. All leaves are one draw, as
    a sampler takes long to compile.

    Args:
      key: a typed key.
      a, b: float32 trees, above 0.

    Returns:
      A float32 tree like `a`.

    Example:
      >>> a, b = {'w': jnp.array([1e6, 1.])}, {'w': jnp.array([1., 1e6])}
      >>> (beta_logits(jax.random.key(0), a, b)['w'] > 0).tolist()
      [True, False]
    """
    flat, unravel = ravel_pytree(a)
    pair = jnp.stack([flat, ravel_pytree(b)[0]])
    of_a, of_b = jax.random.loggamma(key, pair)
    return unravel(of_a - of_b)


def _select_smallest(model, count: Array, select: PyTree) -> PyTree:
    """Returns the mask of the `count` smallest alive weights of each layer."""
    scores = jax.tree.map(lambda w: -jnp.abs(w), model.params)
    return top_k.keep_top(scores, count, select, within=model.mask)


def _squares(params: PyTree, mask: PyTree, select: PyTree) -> Array:
    """Returns the sum of squares of the weights that a mask keeps, of all layers."""
    kept = trees.layers(masks.apply(params, mask), select)
    return optax.tree.norm(kept, squared=True)


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
        raised = optax.tree.scale(share, first.update(updates, state, params)[0])

        def longer(own, raised):
            return jnp.where(jnp.abs(raised) > jnp.abs(own), raised, own)

        return jax.tree.map(longer, own, raised), (after, step + 1)

    return optax.GradientTransformation(init, update)
