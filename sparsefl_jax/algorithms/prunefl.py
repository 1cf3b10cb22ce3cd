"""PruneFL: adaptive pruning by the squared gradient of a weight per unit of time.

Jiang et al., "Model Pruning Enables Efficient Federated Learning on Edge Devices", IEEE
TNNLS 2022, https://arxiv.org/abs/1909.12326. Stage 1 is `prunefl_initial`, one round at
one client; stage 2 is `prunefl`. Constants, timing and accumulated sums are those of
the released code, with three differences. Its stage 1 also masks the gradients, so that
no weight grows back; here gradients are dense. Weights that grow back in its stage 2
resume an old value; here they start at 0. It exceeds `max_density` by one weight; here
the cap is exact.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from sparsefl_jax.algorithms import masked
from sparsefl_jax.core import types
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import Array, PyTree, SparseModel, Work
from sparsefl_jax.models.base import Model
from sparsefl_jax.models.loss import knows_classes
from sparsefl_jax.sparsity import masks, top_k, trees
from sparsefl_jax.sparsity.layer_densities import counts, floor_count
from sparsefl_jax.training import local, means, screening
from sparsefl_jax.wire.packets import Packet, pack_up, unpack_model

_CHANGE, _PATIENCE = 0.1, 5  # settled: five times in a row, no more than a tenth


class Search(NamedTuple):
    """The state of a client's initial pruning."""

    state: local.LocalState  # opt_state[0]: squared gradients since the last cut
    mask: PyTree  # bool
    work: Work
    iteration: Array  # shape=(), int32: passes over the batches so far
    start: Array  # shape=(), int32: iteration of the first cut; the limit before it
    density: Array  # shape=(), float32: after the last cut, 0 before the first
    settled: Array  # shape=(), int32: number of last cuts that hardly changed it


@method
def prunefl_initial(
    model: Model,
    optimizer: Optimizer,
    *,
    num_batches: types.Count = 10,
    reconfigure_every: types.Count = 50,
    max_iterations: types.Count = 1000,
    start_accuracy: types.Fraction = 0.15,
    prune_rate: types.Fraction = 0.3,
    layer_time: tuple[float, ...] | None = None,
    constant_time: types.NonNegative = 0.0,
    max_density: types.Share = 1.0,
    prunable: masks.Globs = masks.KERNELS,
    index: str = "bitmap",
) -> Algorithm:
    """PruneFL's initial pruning: one client trains and prunes within one round.

    The client trains on its first `num_batches` minibatches repeatedly; one pass over
    them is an iteration. From the first iteration with an accuracy of at least
    `start_accuracy`, and then every `reconfigure_every` iterations, it applies the rule
    of `make_rule` to the squares of its gradients, summed over all steps since the
    last time. It ends after `max_iterations`, or when the density has changed by at
    most a tenth five times in a row.

    The next stage starts from the mask and the trained weights. Down and up: alive
    weights and their positions, dense leaves and statistics, float32. With several
    clients, the server takes the mean of the weights and the union of the masks. A
    reconfiguration is charged n log2(n + 1) FLOPs over the n prunable weights.

    Args:
      model: the network and its loss.
      optimizer: the client's, as `local.make_optimizer` returns it.
      num_batches: minibatches that the client uses; of 20 samples in the paper.
      reconfigure_every: iterations between reconfigurations.
      max_iterations: maximum number of iterations.
      start_accuracy: training accuracy on the minibatches that starts the pruning; 1.5
        / classes in the paper.
      prune_rate: share of a layer's alive weights that may be pruned at a time.
      layer_time, constant_time, prunable, index: as in `prunefl`.
      max_density: as in `prunefl`; 1 in the paper.

    Raises:
      ValueError: an argument is out of range, or `layer_time` of another length.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> for_62_classes = prunefl_initial(model, optimizer, start_accuracy=1.5 / 62)
    """
    if not knows_classes(model.loss):
        raise UserError("prunefl_initial begins at an accuracy, expected classes")
    loss_fn = local.objective(model)
    select = masks.prunable(model.macs, prunable)
    reconfigure = make_rule(select, prune_rate, layer_time, constant_time, max_density)

    def train(key, ctx, received, client, batches):
        tx = optax.chain(summing(2), optimizer(ctx.round))
        sorting = top_k.flops(received.params, select)
        steps = jnp.minimum(local.own_steps(batches, 0), num_batches)
        shared = jnp.minimum(batches.num_steps, num_batches)
        span = {"epoch": 0, "first": 0, "last": steps, "num_trips": shared}

        def cut(at: Search) -> Search:
            squared, *rest = at.state.opt_state
            before = SparseModel(at.state.params, at.mask, at.state.stats)
            after = reconfigure(before, squared, jnp.float32(0))
            density = masks.density(after.mask, select)
            change = jnp.abs(density - at.density)
            same = (at.density > 0) & (change <= jnp.float32(_CHANGE) * at.density)
            opt_state = (optax.tree.zeros_like(squared), *rest)
            return at._replace(
                state=at.state._replace(params=after.params, opt_state=opt_state),
                mask=after.mask,
                work=at.work._replace(extra=at.work.extra + sorting),
                density=density,
                settled=jnp.where(same, at.settled + 1, jnp.int32(0)),
            )

        def iterate(at: Search) -> Search:
            step_key = jax.random.fold_in(key, at.iteration)
            project = partial(masks.apply, mask=at.mask)
            state = local.train_steps(
                step_key, loss_fn, tx, at.state, batches, project=project, **span
            )
            seen = optax.tree.sub(state.sums, at.state.sums)
            good = seen["correct"] >= start_accuracy * jnp.maximum(seen["count"], 1)
            start = jnp.where(good, jnp.minimum(at.start, at.iteration), at.start)
            passes = screening.work(seen["count"], at.mask)
            done = optax.tree.add(at.work, passes)
            past = at.iteration - start
            due = (past >= 0) & (past % reconfigure_every == 0)
            at = at._replace(state=state, work=done, start=start)
            at = jax.lax.cond(due, cut, lambda same: same, at)
            return at._replace(iteration=at.iteration + 1)

        def goes_on(at: Search) -> Array:
            return (at.iteration < max_iterations) & (at.settled < _PATIENCE)

        zero, none = jnp.zeros((), jnp.float32), jnp.int32(0)
        idle, limit = screening.work(zero, received.mask), jnp.int32(max_iterations)
        untrained = local.start(tx, received), received.mask, idle
        begin = Search(*untrained, none, limit, zero, none)
        found = jax.lax.while_loop(goes_on, iterate, begin)
        trained = SparseModel(found.state.params, found.mask, found.state.stats)
        metrics = {**found.state.sums, "work": found.work}
        metrics["iterations"] = found.iteration.astype(jnp.float32)
        return local.Trained(trained, local.ANEW, metrics), client

    def aggregate(key, ctx, server, total):
        new = masked.mean_on_union(ctx, server.model, total)
        return masked.move(ctx.round, server, new), {}

    method = masked.training_within(select, index, train)
    return method.replace(aggregate, contribute=masked.summand_with_mask)


@method
def prunefl(
    model: Model,
    optimizer: Optimizer,
    *,
    reconfigure_every: types.Count = 50,
    prune_rate: types.Fraction = 0.3,
    half_life: types.Positive = 10000.0,
    layer_time: tuple[float, ...] | None = None,
    constant_time: types.NonNegative = 0.0,
    max_density: types.Share = 1.0,
    prunable: masks.Globs = masks.KERNELS,
    index: str = "bitmap",
) -> Algorithm:
    """FedAvg within a mask that the server reconfigures at regular intervals.

    In round t, a positive multiple of `reconfigure_every`, the server applies the rule
    of `make_rule` to the sum of n_k z_k over the cohort, at the rate `prune_rate`
    0.5^(t / half_life). n_k is the number of samples of client k. z_k accumulates, in
    the client's rounds since the last reconfiguration, the square of its gradient
    summed over the local steps of a round, pruned weights included.

    Down and up: alive weights, dense leaves and statistics, float32; down also the
    positions, to clients that do not hold the current mask. Up in rounds that
    reconfigure also z_k, dense: 32 bits for each parameter of the network. A client
    keeps z_k, float32 like the parameters; a client that is not drawn in such a round,
    or whose uplink then comes too late, loses it. An uplink that is late in another
    round loses no gradient: z_k goes on. The ledger's FLOPs: the gradient of the
    weights is dense in every round.

    The density follows from the times: the larger `constant_time` is compared with the
    times of the weights, the more weights join, until `max_density` alone decides. The
    released times for FEMNIST, in seconds for five local steps and the upload (5x5
    convolutions of 32 and 64, dense layers of 2048 and 62), are 5.5616e-6 + 5 (0,
    7.0989e-6, 1.9273e-7, 1.7823e-7) for a weight of each layer, and 5 * 1.2493 for
    `constant_time`.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it.
      reconfigure_every: rounds between reconfigurations.
      prune_rate: share of a layer's alive weights that may be pruned, in round 0.
      half_life: rounds in which that share halves.
      layer_time: time that a weight takes, for each prunable leaf in tree order. None:
        1 for all, the multiply-adds of a weight in a dense layer. A weight of a
        convolution has as many as the output has positions, which None ignores.
      constant_time: time that a round takes apart from the weights.
      max_density: share of the prunable weights that may be alive.
      prunable: globs of the leaves that can be pruned.
      index: how positions are written, see `packets.Packet`.

    Raises:
      ValueError: an argument is out of range, or `layer_time` is not as long as there
        are layers.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> half = prunefl(model, optimizer, max_density=0.5, constant_time=1e6)
    """
    loss_fn = local.objective(model)
    select = masks.prunable(model.macs, prunable)
    reconfigure = make_rule(select, prune_rate, layer_time, constant_time, max_density)

    def window(round):
        """Returns the reconfiguration that a round belongs to; round 0 to the first."""
        return jnp.maximum(round - 1, 0) // reconfigure_every

    # Its init, broadcast and deploy also serve a mask that changes.
    frozen = masked.spdst(model, optimizer, prunable=prunable, index=index)

    def init_client(key, received, info):
        return optax.tree.zeros_like(model.shapes()[0])

    def update(key, ctx, downlink, client, batches):
        received = unpack_model(downlink)
        tx = optax.chain(summing(), optimizer(ctx.round))
        fresh = tx.init(received.params)
        options = {"opt_state": fresh, "gradients": "dense"}  # which are summed
        trained = local.train(key, loss_fn, tx, received, batches, **options)
        goes_on = window(ctx.last_round) == window(ctx.round)
        summed = trained.opt_state[0]
        squared = jax.tree.map(
            lambda z, g: jnp.where(goes_on, z, 0.0) + g**2, client, summed
        )
        uplink = pack_up(trained.model, received.mask, select, index=index)
        due = (ctx.round > 0) & (ctx.round % reconfigure_every == 0)
        uplink["squared_gradients"] = Packet(squared, sent=due)
        done = screening.work(trained.metrics["count"], received.mask)
        return uplink, squared, trained.metrics | {"work": done}

    def contribute(ctx, uplink):
        sent, mean = uplink["squared_gradients"], masked.summand(ctx, uplink)
        squared = means.weighted_sum(sent.values, ctx.client.num_examples * sent.sent)
        return {"mean": mean, "squared": squared}

    def aggregate(key, ctx, server, total):
        old, squared = server.model, total["squared"]
        mean, due = masked.average(old, total["mean"]), squared["weight"] > 0
        halvings = ctx.round.astype(jnp.float32) / half_life
        changed = partial(reconfigure, mean, squared["sum"], halvings)
        new = jax.lax.cond(due, changed, lambda: mean)
        return masked.move(ctx.round, server, new), {}

    return frozen.replace(init_client, update, contribute, aggregate)


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
        room = counts(max_density, sizes.sum()) - jnp.sum(masks.counts(stay, select))
        mask = jax.tree.map(jnp.logical_or, stay, join(squared, stay, room))
        return masks.prune(model, mask)

    def join(squared, stay, room):
        """Returns the mask of the weights that stay and of the candidates that join."""
        gain = trees.layers(squared, select)
        free = [~m for m in trees.layers(stay, select)]
        others = jax.tree.leaves(trees.split(squared, select)[1])
        dense = sum((jnp.sum(g) for g in others), jnp.float32(0))
        known = zip(gain, free, times, strict=True)
        worth = [jnp.where(f, g / c, jnp.float32(-1)) for g, f, c in known]

        def ratio(above):
            """Returns gain over time of staying weights and candidates worth more."""
            total, time = dense, jnp.float32(constant_time)
            for g, f, c, v in zip(gain, free, times, worth, strict=True):
                alive = ~f | (v > above)
                total += jnp.sum(jnp.where(alive, g, jnp.zeros_like(g)))
                time += c * jnp.sum(alive, dtype=jnp.int32).astype(jnp.float32)
            return jnp.where(time > 0, total / time, jnp.float32(0))

        # The greedy rule ends at the candidates worth more than the resulting ratio.
        above, _ = jax.lax.while_loop(
            lambda pair: pair[1] > pair[0],
            lambda pair: (pair[1], ratio(pair[1])),
            (jnp.float32(-1), ratio(jnp.float32(jnp.inf))),
        )
        flat, unravel = ravel_pytree(worth)
        number = jnp.sum(flat > jnp.maximum(above, 0), dtype=jnp.int32)
        joined = top_k.top_k(flat, jnp.minimum(number, room))
        return trees.replace_layers(stay, select, unravel(joined))

    return reconfigure


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
