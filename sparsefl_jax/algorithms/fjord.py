"""FjORD: ordered dropout, which trains prefixes of the network's width.

Horvath et al., "FjORD: Fair and Accurate Federated Learning under Heterogeneous Targets
with Ordered Dropout", NeurIPS 2021, https://arxiv.org/abs/2102.13451.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import Array, PyTree, SparseModel, Work
from sparsefl_jax.models import adapters
from sparsefl_jax.models.base import Model
from sparsefl_jax.models.layers import is_static
from sparsefl_jax.sparsity import masks, width
from sparsefl_jax.sparsity.nested import place_within
from sparsefl_jax.training import local, means
from sparsefl_jax.wire.messages import pack_slice, unpack_params
from sparsefl_jax.wire.packets import Packet


class Server(NamedTuple):
    """The model, with normalisation statistics for each of W widths."""

    params: PyTree  # float32
    stats: PyTree  # float32, [W, ...]


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
    adapters.refuse(model, "a slice of the width cuts their rank")

    def init(key, start: SparseModel):
        width.check_sliceable(start)
        if any(jax.tree.leaves(is_static(start.stats))):
            raise UserError("fjord: norm='static', expected 'batch' or None")
        stats = jax.tree.map(lambda s: jnp.stack([s] * len(rates)), start.stats)
        return Server(start.params, stats)

    def broadcast(key, ctx, server):
        place, message = place_within(ctx.client.budget, rates), {}
        rows = jnp.arange(len(rates), dtype=jnp.int32)
        if draw == "round":  # static branch
            place = jax.random.randint(key, (), 0, place + 1, jnp.int32)
            bits = (len(rates) - 1).bit_length()
            message["width"] = Packet(place.astype(jnp.uint32), bits=bits)
        rows = rows == place if draw == "round" else rows <= place
        each = jax.vmap(width.window_of_stats)(server.stats, jnp.float32(rates))
        of_stats = jax.tree.map(lambda m: m & rows[:, None], each)
        mask = width.window(server.params, jnp.float32(rates)[place])
        message["params"] = pack_slice(server.params, mask)
        message["stats"] = pack_slice(server.stats, of_stats)
        return message

    def update(key, ctx, downlink, client, batches):
        start, place = unpack_params(downlink), place_within(ctx.client.budget, rates)
        if draw == "round":  # static branch
            place = downlink["width"].values.astype(jnp.int32)
        loss_fn = _ordered_dropout(model, rates, place, draw, distill)
        tx = optimizer(ctx.round)
        sums = {"seen": jnp.zeros((len(rates),), jnp.float32)}
        trained = local.train(key, loss_fn, tx, start, batches, sums=sums)
        metrics = dict(trained.metrics)
        metrics["work"] = _work(metrics.pop("seen"), start.params, rates)
        uplink = {
            "params": pack_slice(trained.model.params, start.mask),
            "stats": pack_slice(trained.model.stats, downlink["stats"].mask),
        }
        return uplink, client, metrics

    def contribute(ctx, uplink):
        values = {name: packet.values for name, packet in uplink.items()}
        mask = {name: packet.mask for name, packet in uplink.items()}
        return means.covered_sum(values, mask, weight(ctx.client))

    def aggregate(key, ctx, server, total):
        mean = means.covered_mean(total, server._asdict())
        return Server(**mean), {}

    def deploy(key, server):
        return {f"w{rates[-1]:g}": _cut(server, rates, len(rates) - 1)}

    def personalize(key, server, client, info):
        return {"personal": _cut(server, rates, place_within(info.budget, rates))}

    required = (init, broadcast, update, contribute, aggregate, deploy)
    return Algorithm(*required, personalize=personalize)


def _cut(server: Server, rates: list[float], place: int | Array) -> SparseModel:
    """Returns the slice at a width, with the statistics of that width."""
    mask = width.window(server.params, jnp.float32(rates)[place])
    stats = jax.tree.map(lambda s: s[place], server.stats)
    return SparseModel(masks.apply(server.params, mask), mask, stats)


def _ordered_dropout(
    model: Model, rates: list[float], place: Array, draw: str, distill: bool
) -> Callable:
    """Returns the loss of a minibatch at a width that it draws, at most `place`."""

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

    def drawn_loss(key, params, stats, x, y, weight):
        at, part = place, params
        if draw == "batch":  # static branch
            draw_key, key = jax.random.split(key)
            at = jax.random.randint(draw_key, (), 0, place + 1, jnp.int32)
            part = masks.apply(params, width.window(params, jnp.float32(rates)[at]))
        if not distill:  # static branch
            loss, _, stats, sums = at_width(key, part, stats, at, x, y, weight)
            return loss, (stats, sums)
        whole, logits, stats, sums = at_width(key, params, stats, place, x, y, weight)
        soft = jax.nn.softmax(lax.stop_gradient(logits))
        again = jax.random.clone(key)  # both passes see the same augmented samples
        loss, _, stats, more = at_width(again, part, stats, at, x, soft, weight)
        seen = sums["seen"] + more["seen"]
        return whole + loss, (stats, sums | {"seen": seen})

    return drawn_loss


def _work(seen: Array, params: PyTree, rates: list[float]) -> Work:
    """Returns the work of `seen` [W] samples, each at its width."""
    each = [
        local.work(number, width.window(params, rate))
        for number, rate in zip(seen, rates, strict=True)
    ]
    return jax.tree.map(lambda *v: sum(v), *each)
