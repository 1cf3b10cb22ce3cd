"""FLASC: the server sends its largest entries, clients train all and send the largest.

Kuo, Raje, Rajesh and Smith, "Federated LoRA with Sparse Communication", 2024,
https://arxiv.org/abs/2406.05233. `docs/methods/flasc.md` says what the released code
does otherwise.

`rank_tiers` has adapters of unequal ranks, as that code does to compare with them: a
client of less memory trains the first few ranks. HetLoRA, which also weights clients
and prunes ranks, is another method.
"""

import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from sparsefl_jax.algorithms.fedavg import fedavg
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import Array, Count, PyTree, Share
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import layer_densities, masks, top_k, trees, width
from sparsefl_jax.training import means
from sparsefl_jax.wire.packets import Packet, is_new, last_change, pack_slice

RANK = {"lora_a/kernel": 1, "lora_b/kernel": 0}  # the axis of the rank in A and in B


class Server(NamedTuple):
    """The dense model, and what of it travels."""

    dense: PyTree  # as `fedavg` has it
    mask: PyTree  # bool like the parameters
    changed_at: Array  # shape=(), int32: the first round that sends this mask


@method
def flasc(
    model: Model,
    optimizer: Optimizer,
    *,
    density: Share,
    up_density: Share | None = None,
    decay: Share = 1.0,
    decay_every: Count = 1,
    train: Literal["dense", "masked"] = "dense",
    server_optimizer: optax.GradientTransformation | None = None,
    weighting: means.Weighting = "uniform",
    prunable: masks.Globs = ("*",),
    index: str = "packed",
) -> Algorithm:
    """FLASC: what travels is sparse, what is trained is not.

    The server keeps n dense entries P and sends the k = int(n `density`) largest |P|. A
    client starts from them, with 0 in the place of the others, trains all n, and sends
    the largest entries of its change. The server's optimizer takes the negated mean
    change for a gradient, 0 where a client sent nothing. The paper has adapters of
    large networks, see `Model.with_adapters`; the method runs on any network.

    Down and up: the largest entries of all leaves together, float32, and their
    positions, which change in every round; a bit down says so. They are free at a
    density of 1 without `decay`, and on the way up with `train='masked'` and no
    `up_density`, where the server has just sent them. Both: statistics. A client keeps
    nothing. The headline is P cut to what the next client would get, and `unpruned` is
    P.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it; it starts afresh
        in every round.
      density: share of the entries that the server sends.
      up_density: share of the entries that a client sends; None: `density`, or with
        `train='masked'` all that it has trained.
      decay: factor of both densities at every fall, at most 0.99999 or 1; one entry
        stays.
      decay_every: rounds from one fall to the next.
      train: 'dense', or 'masked' if a client trains only what it received. With a
        `decay`, that is gradual pruning: the mask is that of the dense P in each round.
      server_optimizer: an optax optimizer; None: `optax.adam(1e-3)`, as in the paper.
        `optax.sgd(1.0)` adds the mean change.
      weighting: a client's weight in the mean, see `means.WEIGHTINGS`.
      prunable: globs of the leaves whose entries are ranked, both ways; the others
        travel whole.
      index: how positions are written, see `packets.Packet`.

    Raises:
      ValueError: an argument is out of range, a glob matches no leaf, or a density
        leaves no entry.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = flasc(model, optimizer, density=0.25)
    """
    tx = server_optimizer or optax.adam(1e-3)
    averaging = fedavg(model, optimizer, server_optimizer=tx, weighting=weighting)
    select = masks.prunable(model.macs, prunable)
    size = int(trees.layer_sizes(model.shapes()[0], select).sum())
    down = _counts("density", density, size, decay)
    up = down if up_density is None else _counts("up_density", up_density, size, decay)
    all_trained = train == "masked" and up_density is None
    # Both ends know where everything is, or what the client has just received.
    down_index = "none" if down[-1] == size else index
    up_index = "none" if all_trained or up[-1] == size else index
    written = {"index": down_index, "optional": down_index != "none"}

    def keep_largest(tree, counts, round):
        count = jnp.asarray(counts)[jnp.minimum(round // decay_every, len(counts) - 1)]
        return top_k.largest_overall(jax.tree.map(jnp.abs, tree), count, select)

    def init(key, start):
        mask = keep_largest(start.params, down, 0)
        return Server(averaging.init(key, start), mask, jnp.int32(0))

    def broadcast(key, ctx, server):
        params, mask = masks.apply(server.dense.params, server.mask), server.mask
        sent = Packet(params, mask, is_new(ctx, server.changed_at), **written)
        return {"params": sent, "stats": Packet(server.dense.stats)}

    def update(key, ctx, downlink, client, batches):
        params = downlink["params"]
        if train == "dense":  # static branch
            downlink = downlink | {"params": Packet(params.values)}
        uplink, client, metrics = averaging.update(key, ctx, downlink, client, batches)
        delta = uplink["delta"].values
        kept = params.mask if all_trained else keep_largest(delta, up, ctx.round)
        sent = Packet(masks.apply(delta, kept), kept, index=up_index)
        return uplink | {"delta": sent}, client, metrics

    def aggregate(key, ctx, server, total):
        dense, metrics = averaging.aggregate(key, ctx, server.dense, total)
        mask = keep_largest(dense.params, down, ctx.round + 1)
        changed_at = last_change(ctx.round, server.mask, mask, server.changed_at)
        return Server(dense, mask, changed_at), metrics

    def deploy(key, server):
        whole = averaging.deploy(key, server.dense)["global"]
        return {"global": masks.prune(whole, server.mask), "unpruned": whole}

    steps = init, broadcast, update, averaging.contribute, aggregate, deploy
    return Algorithm(*steps)


@method
def rank_tiers(
    model: Model,
    optimizer: Optimizer,
    *,
    coverage: bool = False,
    server_optimizer: optax.GradientTransformation | None = None,
    weighting: means.Weighting = "uniform",
) -> Algorithm:
    """A client of budget p trains the first max(1, ceil(p r)) of r ranks.

    These are the first columns of A and the first rows of B of each adapter, see
    `Model.with_adapters`. All that belongs to no adapter is trained by every client.

    Down and up: the ranks of the client and all other leaves, float32, without
    positions, because both ends know the budget; statistics. A client keeps nothing.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it; it starts afresh
        in every round.
      coverage: whether an entry's mean is over the clients that hold it; by default
        the others count as clients whose change is 0, as in the released code.
      server_optimizer: an optax optimizer that takes the negated mean change for a
        gradient; None: `optax.adam(1e-3)`.
      weighting: a client's weight in the mean, see `means.WEIGHTINGS`.

    Raises:
      ValueError: there is no such weighting, or `model` is no `Model`.

    Example:
      >>> import sparsefl_jax as sfl
      >>> network = sfl.models.build("encoder", 2, (10,), layers=1)
      >>> optimizer = sfl.training.make_optimizer()
      >>> method = rank_tiers(network.with_adapters(16), optimizer)
    """
    tx = server_optimizer or optax.adam(1e-3)
    averaging = fedavg(model, optimizer, server_optimizer=tx, weighting=weighting)

    def held(params, budget):
        def kept(path, leaf):
            axis = RANK.get("/".join(path.split("/")[-2:]))
            if axis is None:  # static branch
                return jnp.ones(leaf.shape, jnp.bool_)
            place = jax.lax.broadcasted_iota(jnp.float32, leaf.shape, axis)
            return place < width.num_kept(budget, leaf.shape[axis])

        return trees.map_by_path(kept, params)

    def broadcast(key, ctx, server):
        params = pack_slice(server.params, held(server.params, ctx.client.budget))
        return {"params": params, "stats": Packet(server.stats)}

    def update(key, ctx, downlink, client, batches):
        uplink, client, metrics = averaging.update(key, ctx, downlink, client, batches)
        delta = pack_slice(uplink["delta"].values, downlink["params"].mask)
        return uplink | {"delta": delta}, client, metrics

    def contribute(ctx, uplink):
        delta, share = uplink["delta"], means.WEIGHTINGS[weighting](ctx.client)
        holds = delta.mask if coverage else masks.full(delta.values)
        change = means.covered_sum(delta.values, holds, share)
        return change, means.weighted_sum(uplink["stats"].values, share)

    def aggregate(key, ctx, server, total):
        delta = means.covered_mean(total[0])
        stats = means.weighted_mean(total[1], server.stats)
        mean = means.weighted_sum({"delta": delta, "stats": stats})
        return averaging.aggregate(key, ctx, server, mean)

    return averaging.replace(broadcast, update, contribute, aggregate)


def _counts(name: str, share: float, size: int, decay: float) -> np.ndarray:
    """Returns how many of all entries travel after each fall, [J] int32."""
    if 0.99999 < decay < 1:  # J would be in the millions
        raise UserError(f"decay={decay}, expected at most 0.99999, or 1 for no fall")
    falls = 0 if decay == 1 else math.ceil(math.log(size) / -math.log(decay))
    kept = layer_densities.counts(share * decay ** np.arange(falls + 1), size)
    if kept[0] < 1:
        least = f"at least 1/{size} to leave one of {size} entries"
        raise UserError(f"{name}={share}, expected {least}")
    return np.maximum(kept, 1)
