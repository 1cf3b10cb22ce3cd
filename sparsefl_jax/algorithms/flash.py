"""FLASH: federated lottery-aware sparsity hunting.

Babakniya et al., "Revisiting Sparsity Hunting in Federated Learning: Why does Sparsity
Consensus Matter?", TMLR 2023, https://arxiv.org/abs/2208.13092. Stage 1 is
`sensitivity`. Stage 2 is `nst`, `jmwst`, or `spdst` or `pdst` of `masked`, and with
budgets that differ between clients `hetero_spdst` or `hetero_jmwst`. If the paper and
the released code disagree, an argument selects the code's behaviour, and the `release`
presets set it.

A client's weight in the means of weights and statistics is its number of samples; the
released code takes plain means, which is the same for its clients of equal size. Layer
densities are averaged with equal weights.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.algorithms import masked
from sparsefl_jax.core import types
from sparsefl_jax.core.algorithm import Algorithm, Message, Optimizer, method
from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import Array, PyTree, SparseModel
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import layer_densities, masks, regrow, top_k, trees
from sparsefl_jax.training import local, means
from sparsefl_jax.wire.packets import Packet, last_change, pack_down, unpack_model


class Changing(NamedTuple):
    """The state of a server whose aggregate is denser than its target."""

    model: SparseModel  # the aggregate; mask: the union of the last cohort's masks
    mask: PyTree  # bool, at the target density
    changed_at: Array  # int32, first round that broadcasts it: (), or one per density
    seed: Array | tuple = ()  # uint32, of the first mask that clients keep, if they do


Average = Literal["fedavg", "wfa"]
AVERAGES = {  # Algorithm 3: what a client adds, and what follows from the sum
    "fedavg": (masked.summand_with_mask, masked.mean_on_union),
    "wfa": (masked.covered_summand, masked.covered_average),
}


@method
def sensitivity(
    model: Model,
    optimizer: Optimizer,
    *,
    density: types.Share,
    prunable: masks.Globs = masks.KERNELS,
    prune_rate: types.Fraction = 0.25,
    prune_rate_decay: bool = True,
    group: int = 0,
    index: str = "bitmap",
) -> Algorithm:
    """FLASH's stage 1: clients measure how dense each layer should be (Algorithm 1).

    All clients start from the same weights and the same random mask and run sparse
    learning. Down: alive weights and their positions, dense leaves and statistics,
    float32. Up: L layer densities, float32. The server averages these with equal
    weights, draws the mask of stage 2 (Eq. 3) and hands on the initial weights,
    unpruned and untrained.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it.
      density: target share of alive prunable weights.
      prunable: globs of the leaves that can be pruned.
      prune_rate: share of a layer's alive weights that one surgery exchanges.
      prune_rate_decay: the rate falls linearly to 0 over the local steps.
      group: 0 for unstructured masks, M for N:M masks with N = round(d_l M), at
        least 1.
      index: how positions are written, see `packets.Packet`.

    Raises:
      ValueError: an argument is out of range.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> stage = sensitivity(model, optimizer, density=0.1)
    """
    loss_fn, select = local.objective(model), masks.prunable(model.macs, prunable)
    learn = learner(loss_fn, select, density, prune_rate, prune_rate_decay)
    if group < 0 or group and round(group * density) < 1:
        raise UserError(f"{group=}, expected 0 or one with an entry at {density=}")

    def init(key, start):
        mask = masks.bernoulli(key, start.params, jnp.float32(density), select)
        return masked.Server(start._replace(mask=mask), jnp.int32(0))

    def update(key, ctx, downlink, client, batches):
        received = unpack_model(downlink)
        found = learn(key, optimizer(ctx.round), received, batches)
        layers = masks.layer_densities(found.model.mask, select)
        return {"density": Packet(layers)}, client, found.metrics

    def contribute(ctx, uplink):
        return means.weighted_sum(uplink["density"].values)

    def aggregate(key, ctx, server, total):
        old = server.model
        sizes, mean = trees.layer_sizes(old.params, select), means.weighted_mean(total)
        layers = layer_densities.recalibrate(mean, sizes, density)
        if group:  # static branch
            per_group = jnp.clip(jnp.round(layers * group), 1, group).astype(jnp.int32)
            scores = masks.uniform_scores(key, old.params, select)
            mask = top_k.n_of_m(scores, per_group, group, select)
        else:
            mask = masks.bernoulli(key, old.params, layers, select)
        return masked.move_if_heard(ctx, server, old._replace(mask=mask)), {}

    def deploy(key, server):
        return {"initial": server.model}

    method = masked.training_within(select, index, learn)
    return method.replace(init, update, contribute, aggregate, deploy)


@method
def jmwst(
    model: Model,
    optimizer: Optimizer,
    *,
    density: types.Share,
    r_int: types.Count = 1,
    average: Average = "fedavg",
    prunable: masks.Globs = masks.KERNELS,
    prune_rate: types.Fraction = 0.25,
    prune_rate_decay: bool = True,
    index: str = "bitmap",
) -> Algorithm:
    """Joint mask and weight sparse training: clients' masks vote every `r_int` rounds.

    Down and up: alive weights, dense leaves and statistics, float32; positions if they
    changed. In rounds 0, r_int, 2 r_int, ... clients prune and regrow, and the server
    then chooses a new mask; in the other rounds the mask does not change.

    Args:
      density: target share of alive prunable weights.
      r_int: rounds between changes of the mask.
      average: 'fedavg' counts an entry that a client lacks as its 0; 'wfa' takes the
        mean over the clients that hold it.
      prune_rate: share of a layer's alive weights that one surgery exchanges.
      prune_rate_decay: the rate falls linearly to 0 over the local steps.
      model, optimizer, prunable, index: as in `spdst`.

    Raises:
      ValueError: an argument is out of range.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = jmwst(model, optimizer, density=0.1, r_int=5)
    """
    weights, merged = AVERAGES[average]
    loss_fn, select = local.objective(model), masks.prunable(model.macs, prunable)
    learn = learner(loss_fn, select, density, prune_rate, prune_rate_decay)

    def init(key, start):
        return Changing(start, masked.within(start, select).mask, jnp.int32(0))

    def broadcast(key, ctx, server):
        target = server.model._replace(mask=server.mask)
        return pack_down(ctx, target, server.changed_at, select, index=index)

    def train(key, ctx, received, client, batches):
        tx, adjust = optimizer(ctx.round), ctx.round % r_int == 0
        return learn(key, tx, received, batches, when=adjust), client

    def aggregate(key, ctx, server, total):
        mean = merged(ctx, server.model, total)
        layers = means.weighted_mean(total["density"])
        vote = (ctx.round % r_int == 0) & (ctx.heard > 0)
        voted = partial(target_mask, mean, layers, density, select)
        mask = jax.lax.cond(vote, voted, lambda: server.mask)
        changed_at = last_change(ctx.round, server.mask, mask, server.changed_at)
        return Changing(mean, mask, changed_at), {}

    contribute = partial(summand, select=select, weights=weights)
    method = masked.training_within(select, index, train)
    return method.replace(init, broadcast, aggregate, deploy, contribute=contribute)


@method
def nst(
    model: Model,
    optimizer: Optimizer,
    *,
    density: types.Share,
    prunable: masks.Globs = masks.KERNELS,
    prune_rate: types.Fraction = 0.25,
    prune_rate_decay: bool = True,
    index: str = "bitmap",
) -> Algorithm:
    """Naive sparse training: each client keeps and changes a personal mask.

    Down: the aggregate, as dense as the union of the cohort's masks, with the positions
    if these are new to the client; before a client's first round the seed of the mask
    that all start from, 32 bits. Up: the client's alive weights and new mask, dense
    leaves, statistics. A client keeps its mask, one bit per parameter.

    Args:
      density: share of alive prunable weights on a client.
      model, optimizer, prunable, prune_rate, prune_rate_decay, index: as in `jmwst`.

    Raises:
      ValueError: an argument is out of range.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = nst(model, optimizer, density=0.1)
    """
    loss_fn, select = local.objective(model), masks.prunable(model.macs, prunable)
    learn = learner(loss_fn, select, density, prune_rate, prune_rate_decay)

    def draw(seed):
        key, (params, _) = jax.random.key(seed), model.shapes()
        return masks.bernoulli(key, params, jnp.float32(density), select)

    def init(key, start):
        seed = jax.random.bits(key, (), jnp.uint32)
        mask = draw(seed)
        return Changing(start._replace(mask=mask), mask, jnp.int32(0), seed)

    def send_once(server):
        return {"seed": Packet(server.seed)}

    def init_client(key, received, info):
        return draw(received["seed"].values)

    def train(key, ctx, received, client, batches):
        start = masks.prune(received, client)
        found = learn(key, optimizer(ctx.round), start, batches)
        return found, found.model.mask

    def aggregate(key, ctx, server, total):
        mean = masked.mean_on_union(ctx, server.model, total)
        mask = target_mask(mean, means.weighted_mean(total["density"]), density, select)
        return masked.move_if_heard(ctx, server, mean, mask=mask), {}

    method = masked.training_within(select, index, train)
    changed = init, init_client, send_once, aggregate, deploy
    return method.replace(*changed, contribute=partial(summand, select=select))


def summand(
    ctx, uplink: Message, select: PyTree, weights: Callable = masked.summand_with_mask
) -> dict[str, PyTree]:
    """Returns a client's weights, mask and layer densities, to be summed."""
    layers = masks.layer_densities(unpack_model(uplink).mask, select)
    return weights(ctx, uplink) | {"density": means.weighted_sum(layers)}


def target_mask(
    model: SparseModel, layers: Array, density: float, select: PyTree
) -> PyTree:
    """Returns the mask of the largest |w| of each layer at recalibrated densities.

    Args:
      model: the aggregate; weights outside its mask are not chosen.
      layers: [L] float32, densities to scale by Eq. 3. If together they lie below the
        target they stay as they are, so that the server only gets sparser.
      density: the target.
      select: tree of Python bools, the prunable leaves.
    """
    sizes = trees.layer_sizes(model.params, select)
    layers = layer_densities.recalibrate(layers, sizes, density, raises=False)
    counts = layer_densities.floor_count(layers * np.float32(sizes))
    return top_k.largest_alive(model, counts, select)


def deploy(key, server: Changing) -> dict[str, SparseModel]:
    """Returns the aggregate cut to the target, and the aggregate, which is denser."""
    masked = masks.prune(server.model, server.mask)
    return {"masked": masked, "aggregated": server.model}


def learner(
    loss_fn: Callable, select: PyTree, density: float, prune_rate: float, decay: bool
) -> Callable:
    """Returns training within a mask that it prunes and regrows (Algorithm 2).

    With one epoch there is one surgery, after the step with index floor(n / 2) of the
    client's n steps; with more epochs there is one after each epoch but the last.

    The optimizer sees the gradient within the current mask, and its state stays:
    what has grown begins with the momentum that is left from before it was pruned.

    A surgery is charged n log2(n + 1) FLOPs over the n prunable weights.

    Args:
      loss_fn: as `local.objective` returns it.
      select: tree of Python bools, the prunable leaves.
      density: share of the prunable weights that is alive after a surgery.
      prune_rate: share of a layer's alive weights that one surgery exchanges.
      decay: let the rate fall linearly to 0 over the client's local steps.

    Returns:
      `learn(key, tx, model, batches, *, density, when=True)`, which returns what
      `local.train` returns; its model has the mask after the last surgery. A client may
      have another `density`. `when` is a bool scalar that clients share: whether this
      round changes masks at all.
    """

    def learn(key, tx, model, batches, *, density=density, when=True):
        epochs = batches.order.shape[0]
        sorting = top_k.flops(model.params, select)
        train_key, surgery_key = jax.random.split(key)

        def surgery(training, at, rate, when):
            def cut(training):
                key = jax.random.fold_in(surgery_key, at)
                state, mask, work, carry = training
                params, mask, carry = regrow.prune_regrow(
                    key, state.params, mask, rate, select=select, carry=carry
                )
                work = work._replace(extra=work.extra + sorting)
                return state._replace(params=params), mask, work, carry

            return jax.lax.cond(when, cut, lambda same: same, training)

        def part(training, epoch, first, last, num_trips):
            before, mask, work, carry = training
            span = dict(epoch=epoch, first=first, last=last, num_trips=num_trips)
            key = jax.random.fold_in(train_key, epoch)
            project, inside = partial(masks.apply, mask=mask), local.within(tx, mask)
            state = local.train_steps(
                key, loss_fn, inside, before, batches, project=project, **span
            )
            count = state.sums["count"] - before.sums["count"]
            work = jax.tree.map(jnp.add, work, local.work(count, mask))
            return state, mask, work, carry

        def epoch(e, training):
            training = part(training, e, 0, num_steps, batches.num_steps)
            rate = regrow.prune_rate(prune_rate, e + 1, epochs, decay=decay)
            return surgery(training, e, rate, when & (e + 1 < epochs))

        none = local.work(jnp.zeros((), jnp.float32), model.mask)
        carry = regrow.start_carry(model.params, select, density)
        # The client's state, its mask, its work so far, and what a surgery leaves.
        training = local.start(tx, model), model.mask, none, carry
        num_steps = local.own_steps(batches, 0)
        if epochs == 1:  # static branch
            half, shared = num_steps // 2 + 1, batches.num_steps // 2 + 1
            rate = regrow.prune_rate(prune_rate, half, num_steps, decay=decay)
            training = part(training, 0, 0, jnp.minimum(half, num_steps), shared)
            training = surgery(training, 0, rate, when)
            rest = batches.num_steps - shared
            training = part(training, 0, half, num_steps, rest)
        else:
            training = jax.lax.fori_loop(0, epochs, epoch, training)
        (params, stats, opt_state, sums), mask, work, _ = training
        model = SparseModel(params, mask, stats)
        return local.Trained(model, opt_state, {**sums, "work": work})

    return learn
