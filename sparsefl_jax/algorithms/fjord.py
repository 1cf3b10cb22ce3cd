"""FjORD: ordered dropout, every minibatch through a prefix of the width.

Horvath et al., "FjORD: Fair and Accurate Federated Learning under Heterogeneous Targets
with Ordered Dropout", NeurIPS 2021, https://arxiv.org/abs/2102.13451.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsefl_jax.core.algorithm import Algorithm
from sparsefl_jax.core.types import PyTree, SparseModel
from sparsefl_jax.models.norm import is_static
from sparsefl_jax.sparsity import masks, width
from sparsefl_jax.training import local, means
from sparsefl_jax.wire.messages import pack_slice
from sparsefl_jax.wire.packets import Packet

DRAWS = ("batch", "round")


class Server(NamedTuple):
    """The model, with normalisation statistics for each of W widths."""

    params: PyTree  # float32
    stats: PyTree  # float32, [W, ...]


def fjord(
    model,
    optimizer,
    *,
    widths=(0.2, 0.4, 0.6, 0.8, 1.0),
    draw: str = "batch",
    distill: bool = False,
    all_widths: bool = False,
    weighting: str = "examples",
) -> Algorithm:
    """FjORD: a client of budget b trains widths p of a grid, p <= p_max.

    p_max is the largest width within the budget, at least the smallest of the grid.
    Down and up: the slice at p_max, float32, and the statistics of all widths up to it,
    each in its slice. No positions: the slice follows from the budget. An entry becomes
    the mean over those who sent it and stays as it is where nobody did; so does a
    statistic.

    Deployed is the slice at the largest width, the full network only if that is 1;
    personal models are slices at the client's p_max.

    Args:
      model: the network and its loss, a `Model`.
      optimizer: the clients', as `local.make_optimizer` returns it.
      widths: the grid, each in (0, 1].
      draw: 'batch', a width for every minibatch (paper), or 'round', one for a client
        and round, drawn by the server; only that slice and its statistics travel then,
        and the number of the width downwards (the setting of SpaFL's Table 2).
      distill: a minibatch trains p_max on the labels and p on what p_max says.
      all_widths: also deploy the slices at all other widths, in falling order.
      weighting: of those who sent an entry, see `aggregate.WEIGHTINGS`.

    Raises:
      ValueError: the widths are no grid, `draw` is unknown or leaves no teacher, or the
        weighting is unknown.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.make_optimizer()
      >>> method = fjord(model, optimizer, widths=(0.4, 0.5, 0.6), draw="round")
    """
    rates = sorted(set(widths))
    if len(rates) != len(widths) or not rates or not 0 < rates[0] <= rates[-1] <= 1:
        raise ValueError(f"widths={tuple(widths)}, expected different ones in (0, 1]")
    if draw not in DRAWS:
        raise ValueError(f"draw={draw!r}, expected one of {', '.join(DRAWS)}")
    if distill and draw == "round":
        raise ValueError("distill=True, expected draw='batch', which has a teacher")
    weight, loss_fn = means.weigh(weighting), local.objective(model)

    def grid():
        return jnp.array(rates, jnp.float32)

    def largest(budget):
        within = jnp.sum(grid() <= budget, dtype=jnp.int32)
        return jnp.maximum(within - 1, 0)

    def slice_masks(server, place):
        """Of the weights at a width, and of the statistics that go with them."""
        rows = jnp.arange(len(rates), dtype=jnp.int32)
        rows = rows == place if draw == "round" else rows <= place
        each = jax.vmap(width.prefix_of_stats)(server.stats, grid())
        stats = jax.tree.map(lambda m: m & rows[:, None], each)
        return width.prefix(server.params, grid()[place]), stats

    def init(key, start: SparseModel):
        del key
        width.check(start)
        if any(jax.tree.leaves(is_static(start.stats))):
            raise ValueError("fjord: norm='static', expected 'batch' or None")
        stats = jax.tree.map(lambda s: jnp.stack([s] * len(rates)), start.stats)
        return Server(start.params, stats)

    def broadcast(key, ctx, server):
        place, message = largest(ctx.client.budget), {}
        if draw == "round":  # static branch
            place = jax.random.randint(key, (), 0, place + 1, jnp.int32)
            number = place.astype(jnp.uint32)
            message["width"] = Packet(number, bits=(len(rates) - 1).bit_length())
        mask, of_stats = slice_masks(server, place)
        message["params"] = pack_slice(server.params, mask)
        message["stats"] = pack_slice(server.stats, of_stats)
        return message

    def update(key, ctx, downlink, client, batches):
        params, mask = downlink["params"].values, downlink["params"].mask
        place = largest(ctx.client.budget)
        if draw == "round":  # static branch
            place = downlink["width"].values.astype(jnp.int32)

        def at_width(key, params, stats, at, x, targets, weight):
            """The loss at one width, with its row of the statistics renewed."""
            own = jax.tree.map(lambda s: s[at], stats)
            loss, (new, sums) = loss_fn(key, params, own, x, targets, weight)
            stats = jax.tree.map(lambda s, n: s.at[at].set(n), stats, new)
            seen = sums["count"] * jax.nn.one_hot(at, len(rates))
            return loss, stats, sums | {"seen": seen}

        def teach(key, params, stats, x, weight):
            """What the largest width says, through which no gradient flows."""
            own = jax.tree.map(lambda s: s[place], stats)
            how = {"train": True, "weight": weight, "key": key}
            logits, _ = model.apply(*lax.stop_gradient((params, own)), x, **how)
            return jax.nn.softmax(logits)

        def drawn_loss(key, params, stats, x, y, weight):
            at, part = place, params
            if draw == "batch":  # static branch
                draw_key, key = jax.random.split(key)
                at = jax.random.randint(draw_key, (), 0, place + 1, jnp.int32)
                part = masks.apply(params, width.prefix(params, grid()[at]))
            if not distill:  # static branch
                loss, stats, sums = at_width(key, part, stats, at, x, y, weight)
                return loss, (stats, sums)
            soft = teach(key, params, stats, x, weight)
            whole, stats, sums = at_width(key, params, stats, place, x, y, weight)
            loss, stats, more = at_width(key, part, stats, at, x, soft, weight)
            seen = sums["seen"] + more["seen"]
            return whole + loss, (stats, sums | {"seen": seen})

        start = SparseModel(params, mask, downlink["stats"].values)
        trained = local.train(
            key,
            drawn_loss,
            optimizer(ctx.round),
            start,
            batches,
            sums={"seen": jnp.zeros((len(rates),), jnp.float32)},
        )
        metrics = dict(trained.metrics)
        seen = metrics.pop("seen")
        mask_of = (width.prefix(params, p) for p in rates)
        each = [local.work(n, m) for n, m in zip(seen, mask_of, strict=True)]
        metrics["work"] = jax.tree.map(lambda *v: sum(v), *each)
        uplink = {
            "params": pack_slice(trained.model.params, mask),
            "stats": pack_slice(trained.model.stats, downlink["stats"].mask),
        }
        return uplink, client, metrics

    def contribute(ctx, uplink):
        values = {name: packet.values for name, packet in uplink.items()}
        mask = {name: packet.mask for name, packet in uplink.items()}
        return means.covered_sum(values, mask, weight(ctx.client))

    def aggregate(key, round, server, total):
        del key, round
        mean = means.covered_mean(total, server._asdict())
        return Server(**mean), {}

    def cut(server, place) -> SparseModel:
        mask = width.prefix(server.params, grid()[place])
        stats = jax.tree.map(lambda s: s[place], server.stats)
        return SparseModel(masks.apply(server.params, mask), mask, stats)

    def deploy(key, server):
        del key
        falling = range(len(rates) - 1, -1 if all_widths else len(rates) - 2, -1)
        return {f"w{rates[i]:g}": cut(server, i) for i in falling}

    def personalize(key, server, client, info):
        del key, client
        return {"personal": cut(server, largest(info.budget))}

    return Algorithm(
        init,
        broadcast,
        update,
        contribute,
        aggregate,
        deploy,
        personalize=personalize,
    )
