"""Clients that hold slices of the network's width: HeteroFL, FedRolex and FjORD.

In HeteroFL each client trains the share of the width that it can hold: Diao et al.,
"HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous
Clients", ICLR 2021, https://arxiv.org/abs/2010.01264.

FedRolex's slices roll over the channels: Alam et al., "FedRolex: Model-Heterogeneous
Federated Learning with Rolling Sub-Model Extraction", NeurIPS 2022,
https://arxiv.org/abs/2212.01548.

FjORD has ordered dropout, which trains prefixes of the width: Horvath et al., "FjORD:
Fair and Accurate Federated Learning under Heterogeneous Targets with Ordered Dropout",
NeurIPS 2021, https://arxiv.org/abs/2102.13451.
"""

from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from sparsefl_jax.core.algorithm import Algorithm, Message, Optimizer, method
from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import Array, PyTree, SparseModel
from sparsefl_jax.models import Model, adapters
from sparsefl_jax.models.layers import is_static
from sparsefl_jax.models.loss import knows_classes
from sparsefl_jax.sparsity import masks, trees, width
from sparsefl_jax.sparsity.nested import place_within
from sparsefl_jax.training import local, means
from sparsefl_jax.wire.packets import Packet, pack_slice, unpack_params


class Rolling(NamedTuple):
    """The model at full width, and what has been trained of it."""

    model: SparseModel
    trained: PyTree  # bool like the parameters: some client has sent the entry
    round: Array  # shape=(), int32: the last round that the model has seen, 0 at first


class Grid(NamedTuple):
    """The model, with normalisation statistics for each of W widths."""

    params: PyTree  # float32
    stats: PyTree  # float32, [W, ...]


@method
def heterofl(
    model: Model,
    optimizer: Optimizer,
    *,
    scaler: bool = True,
    mask_classes: bool = True,
) -> Algorithm:
    """HeteroFL: a client of budget p holds the first ceil(p C) of C hidden channels.

    Down: the client's slice of weights, float32, and of running statistics if the
    network has them; the paper's networks, `norm='static'`, have none. Up: the trained
    slice without the classifier's columns of classes that the client does not hold,
    and one bit per class that says which it holds. No positions travel: a slice follows
    from the client's budget, which the server knows. (`check_algorithm` takes a
    client's set of labels as known, so no law asks for these bits.)

    An entry becomes the plain mean over the clients that sent it, and stays as it is if
    none did. Personal models are the server's model cut to the width `info.budget`.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it.
      scaler: in training, divide the outputs of hidden layers by p.
      mask_classes: in training, set the logits of classes that a client does not hold
        to 0, and do not send the columns of the classifier for them.

    Raises:
      ValueError: `model` is no `Model` or has adapters; by `init`, its width cannot be
        sliced.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = heterofl(model, optimizer, mask_classes=False)
    """
    adapters.refuse(model, "a slice of the width cuts their rank")
    if mask_classes and not knows_classes(model.loss):
        raise UserError("mask_classes=True needs a softmax, expected classes or False")

    def init(key, start: SparseModel):
        width.check_sliceable(start)
        return start._replace(mask=None)

    def broadcast(key, ctx, server):
        return pack_slices(server, ctx.client.budget)

    def update(key, ctx, downlink, client, batches):
        received, tx = unpack_params(downlink), optimizer(ctx.round)
        if mask_classes:  # static branch
            rows = jnp.arange(batches.y.shape[0], dtype=jnp.int32)
            held = jnp.zeros((width.num_classes(received.params),), jnp.bool_)
            own = rows < ctx.client.num_examples
            own = jnp.expand_dims(own, range(1, batches.y.ndim))
            held = held.at[batches.y].max(own)

        def apply(params, *args, **kwargs):
            params = width.scale(params, ctx.client.budget) if scaler else params
            logits, stats = model.apply(params, *args, **kwargs)
            if mask_classes:  # static branch
                logits = jnp.where(held[None], logits, jnp.zeros_like(logits))
            return logits, stats

        loss_fn = local.objective(model._replace(apply=apply))
        stats = trees.merge(received.stats, downlink["static"].values)
        start = received._replace(stats=stats)
        trained = local.train(key, loss_fn, tx, start, batches)
        new = trained.model
        _, running = trees.split(new.stats, is_static(new.stats))
        uplink = {"stats": pack_slice(running, downlink["stats"].mask)}
        sent = received.mask
        if mask_classes:  # static branch
            uplink["classes"] = Packet(held.astype(jnp.uint8), bits=1)
            columns = width.columns(received.params, held)
            sent = jax.tree.map(jnp.logical_and, sent, columns)
        uplink["params"] = pack_slice(new.params, sent)
        return uplink, client, trained.metrics

    def contribute(ctx, uplink):
        return sum_slices(uplink, jnp.float32(1))

    def aggregate(key, ctx, server, total):
        static, running = trees.split(server.stats, is_static(server.stats))
        params, running = means.covered_mean(total, [server.params, running])
        return SparseModel(params, None, trees.merge(running, static)), {}

    def deploy(key, server):
        return {"global": masks.dense(server.params, server.stats)}

    def personalize(key, server, client, info):
        mask = width.window(server.params, info.budget)
        return {"personal": masks.prune(server, mask)}

    required = (init, broadcast, update, contribute, aggregate, deploy)
    return Algorithm(*required, personalize=personalize)


@method
def fedrolex(
    model: Model,
    optimizer: Optimizer,
    *,
    scaler: bool = True,
    mask_classes: bool = True,
) -> Algorithm:
    """FedRolex: in round t a client of budget p holds the channels from t on.

    These are the ceil(p C) channels t, t + 1, ... modulo C of the C channels of each
    hidden layer. All else is as in `heterofl`: what travels, without positions, because
    a slice follows from the budget and the round; the clients' training; and the mean
    over the clients that sent an entry. Personal models are the slices of the last
    round.

    In any C successive rounds all channels of a layer are trained equally often, but
    not all weights. Layers of equal width roll together, so over all rounds a client of
    budget p <= 1/2 holds only a share of 2 p - 1 / C of a kernel between two layers of
    C channels. Without a client of budget 1 some weights may therefore stay as they
    were initialised. The metric `untouched` is the share of all entries that no client
    has sent so far.

    The released code rolls backwards, which is the same by the symmetry of channels.
    It draws the clients' budgets anew in every round, and weights normalisation and
    classifier depending on the order of the clients. Here budgets do not change and
    means are plain, as in the paper.

    Args:
      model, optimizer, scaler, mask_classes: as in `heterofl`.

    Raises:
      ValueError: as in `heterofl`.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = fedrolex(model, optimizer, mask_classes=False)
    """
    sliced = heterofl(model, optimizer, scaler=scaler, mask_classes=mask_classes)

    def init(key, start: SparseModel):
        whole = sliced.init(key, start)
        trained = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.bool_), whole.params)
        return Rolling(whole, trained, jnp.int32(0))

    def broadcast(key, ctx, server):
        return pack_slices(server.model, ctx.client.budget, ctx.round)

    def aggregate(key, ctx, server, total):
        whole, _ = sliced.aggregate(key, ctx, server.model, total)
        sent, _ = total["weight"]
        trained = jax.tree.map(lambda t, w: t | (w > 0), server.trained, sent)
        share = masks.density(trained, masks.select_all(trained))
        return Rolling(whole, trained, ctx.round), {"untouched": 1 - share}

    def deploy(key, server):
        return sliced.deploy(key, server.model)

    def personalize(key, server, client, info):
        mask = width.window(server.model.params, info.budget, server.round)
        return {"personal": masks.prune(server.model, mask)}

    return sliced.replace(init, broadcast, aggregate, deploy, personalize)


@method
def fjord(
    model: Model,
    optimizer: Optimizer,
    *,
    widths: Sequence[float] = (0.2, 0.4, 0.6, 0.8, 1.0),
    draw: Literal["batch", "round"] = "batch",
    distill: bool = False,
    weighting: means.Weighting = "examples",
) -> Algorithm:
    """FjORD: a client of budget b trains widths p <= p_max of a grid.

    p_max is the largest width within the budget, at least the smallest of the grid.
    Down and up: the slice at p_max, float32, and the statistics of all widths up to it,
    each in its slice. No positions travel: the slice follows from the budget. An entry
    becomes the mean over the clients that sent it, and stays as it is if none did; so
    does a statistic.

    The method deploys the slice at the largest width, which is the full network only if
    that width is 1. Personal models are slices at the client's p_max.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it.
      widths: the grid, different shares in (0, 1].
      draw: 'batch' draws a width for every minibatch (paper). With 'round' the server
        draws one for each client and round, and sends its number: only that slice and
        its statistics travel (the setting of SpaFL's Table 2).
      distill: a minibatch trains p_max on the labels, and p on the softmax of p_max.
      weighting: a client's weight in the means, see `means.WEIGHTINGS`.

    Raises:
      ValueError: the widths are no grid, `draw` is unknown, `distill` has no teacher,
        the weighting is unknown, or the model has adapters; by `init`, its width cannot
        be sliced, or its norm is 'static'.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = fjord(model, optimizer, widths=(0.4, 0.5, 0.6), draw="round")
    """
    rates, weight = sorted(set(widths)), means.WEIGHTINGS[weighting]
    if len(rates) != len(widths) or not rates or not 0 < rates[0] <= rates[-1] <= 1:
        raise UserError(f"widths={tuple(widths)}, expected different ones in (0, 1]")
    if distill and draw == "round":
        raise UserError("distill=True, expected draw='batch', which has a teacher")
    if distill and not knows_classes(model.loss):
        raise UserError("distill=True needs a softmax, expected classes or False")
    adapters.refuse(model, "a slice of the width cuts their rank")

    def apply(*args, **kwargs):
        logits, stats = model.apply(*args, **kwargs)
        return logits, (stats, logits)

    loss_fn = local.objective(model._replace(apply=apply))

    def at_width(key, params, stats, at, x, targets, weight):
        """Returns the loss and logits at one width, and renews its statistics."""
        row = jax.tree.map(lambda s: s[at], stats)
        loss, ((new, logits), sums) = loss_fn(key, params, row, x, targets, weight)
        stats = jax.tree.map(lambda s, n: s.at[at].set(n), stats, new)
        seen = sums["count"] * jax.nn.one_hot(at, len(rates))
        return loss, logits, stats, sums | {"seen": seen}

    def drop(place, key, params, stats, x, y, weight):
        """Returns the loss of a minibatch at a width that it draws, at most `place`."""
        at, part = place, params
        if draw == "batch":  # static branch
            draw_key, key = jax.random.split(key)
            at = jax.random.randint(draw_key, (), 0, place + 1, jnp.int32)
            part = masks.apply(params, width.window(params, jnp.float32(rates)[at]))
        if not distill:  # static branch
            loss, _, stats, sums = at_width(key, part, stats, at, x, y, weight)
            return loss, (stats, sums)
        whole, logits, stats, sums = at_width(key, params, stats, place, x, y, weight)
        soft = jax.nn.softmax(jax.lax.stop_gradient(logits))
        again = jax.random.clone(key)  # both passes see the same augmented samples
        loss, _, stats, more = at_width(again, part, stats, at, x, soft, weight)
        seen = sums["seen"] + more["seen"]
        return whole + loss, (stats, sums | {"seen": seen})

    def init(key, start: SparseModel):
        width.check_sliceable(start)
        if any(jax.tree.leaves(is_static(start.stats))):
            raise UserError("fjord: norm='static', expected 'batch' or None")
        stats = jax.tree.map(lambda s: jnp.stack([s] * len(rates)), start.stats)
        return Grid(start.params, stats)

    def broadcast(key, ctx, server):
        place, message = place_within(ctx.client.budget, rates), {}
        rows = jnp.arange(len(rates), dtype=jnp.int32)
        held = rows <= place
        if draw == "round":  # static branch
            place = jax.random.randint(key, (), 0, place + 1, jnp.int32)
            held, bits = rows == place, (len(rates) - 1).bit_length()
            message["width"] = Packet(place.astype(jnp.uint32), bits=bits)
        each = jax.vmap(width.window_of_stats)(server.stats, jnp.float32(rates))
        of_stats = jax.tree.map(lambda m: m & held[:, None], each)
        mask = width.window(server.params, jnp.float32(rates)[place])
        message["params"] = pack_slice(server.params, mask)
        message["stats"] = pack_slice(server.stats, of_stats)
        return message

    def update(key, ctx, downlink, client, batches):
        start, place = unpack_params(downlink), place_within(ctx.client.budget, rates)
        if draw == "round":  # static branch
            place = downlink["width"].values.astype(jnp.int32)
        dropped, tx = partial(drop, place), optimizer(ctx.round)
        sums = {"seen": jnp.zeros((len(rates),), jnp.float32)}
        trained = local.train(key, dropped, tx, start, batches, sums=sums)
        metrics = dict(trained.metrics)
        shares = [width.window(start.params, rate) for rate in rates]
        each = map(local.work, metrics.pop("seen"), shares)
        metrics["work"] = jax.tree.map(lambda *v: sum(v), *each)
        uplink = {
            "params": pack_slice(trained.model.params, start.mask),
            "stats": pack_slice(trained.model.stats, downlink["stats"].mask),
        }
        return uplink, client, metrics

    def contribute(ctx, uplink):
        return sum_slices(uplink, weight(ctx.client))

    def aggregate(key, ctx, server, total):
        return Grid(*means.covered_mean(total, [*server])), {}

    def deploy(key, server):
        return {f"w{rates[-1]:g}": _cut(server, rates, len(rates) - 1)}

    def personalize(key, server, client, info):
        return {"personal": _cut(server, rates, place_within(info.budget, rates))}

    required = (init, broadcast, update, contribute, aggregate, deploy)
    return Algorithm(*required, personalize=personalize)


def pack_slices(server: SparseModel, rate: Array, start: Array | int = 0) -> Message:
    """Packs the slice of a width, from channel `start` of every layer on."""
    static, running = trees.split(server.stats, is_static(server.stats))
    mask = width.window(server.params, rate, start)
    of_stats = width.window_of_stats(running, rate, start)
    return {
        "params": pack_slice(server.params, mask),
        "stats": pack_slice(running, of_stats),
        # Every batch computes its own, so a client needs only their shapes.
        "static": Packet(static, bits=0),
    }


def sum_slices(uplink: Message, weight: Array) -> dict[str, PyTree]:
    """Returns a client's summand of parameters and statistics, where it has them."""
    sent = uplink["params"], uplink["stats"]
    values, mask = [p.values for p in sent], [p.mask for p in sent]
    return means.covered_sum(values, mask, weight)


def _cut(server: Grid, rates: list[float], place: int | Array) -> SparseModel:
    """Returns the slice at a width, with the statistics of that width."""
    mask = width.window(server.params, jnp.float32(rates)[place])
    stats = jax.tree.map(lambda s: s[place], server.stats)
    return SparseModel(masks.apply(server.params, mask), mask, stats)
