"""Adapters of unequal ranks: a client of less memory trains the first few of them.

The tiers are those of the code of FLASC, which compares with them: Kuo, Raje, Rajesh
and Smith, "Federated LoRA with Sparse Communication", 2024,
https://arxiv.org/abs/2406.05233. HetLoRA, which also weights clients and prunes ranks,
is another method.
"""

import jax
import jax.numpy as jnp
import optax

from sparsefl_jax.algorithms.fedavg import fedavg
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import masks, trees, width
from sparsefl_jax.training import means
from sparsefl_jax.wire.messages import pack_slice
from sparsefl_jax.wire.packets import Packet

RANK = {"lora_a/kernel": 1, "lora_b/kernel": 0}  # the axis of the rank in A and in B


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
    `Model.adapting`. All that belongs to no adapter is trained by every client.

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
      >>> method = rank_tiers(network.adapting(16), optimizer)
    """
    server_tx = server_optimizer or optax.adam(1e-3)
    shared = {"server_optimizer": server_tx, "weighting": weighting}
    averaging, weight = fedavg(model, optimizer, **shared), means.WEIGHTINGS[weighting]

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
        delta, share = uplink["delta"], weight(ctx.client)
        holds = delta.mask if coverage else masks.full(delta.values)
        change = means.covered_sum(delta.values, holds, share)
        return change, means.weighted_sum(uplink["stats"].values, share)

    def aggregate(key, ctx, server, total):
        delta = means.covered_mean(total[0], means.zeros(total[0]))
        stats = means.weighted_mean(total[1], server.stats)
        mean = means.weighted_sum({"delta": delta, "stats": stats}, jnp.float32(1))
        return averaging.aggregate(key, ctx, server, mean)

    changed = {"broadcast": broadcast, "update": update, "contribute": contribute}
    return averaging.replace(**changed, aggregate=aggregate)
