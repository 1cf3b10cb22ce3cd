"""PruneFL's stage 2: federated learning with a mask that is reconfigured."""

import jax
import jax.numpy as jnp
import optax
from jax import lax

from sparsefl_jax.algorithms.prunefl.rule import make_rule, summing
from sparsefl_jax.algorithms.shared import masked
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.types import Count, Fraction, NonNegative, Positive, Share
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import masks
from sparsefl_jax.training import local, means, screening
from sparsefl_jax.wire.messages import pack_up, unpack_model
from sparsefl_jax.wire.packets import Packet


@method
def prunefl(
    model: Model,
    optimizer: Optimizer,
    *,
    reconfigure_every: Count = 50,
    prune_rate: Fraction = 0.3,
    half_life: Positive = 10000.0,
    layer_time: tuple[float, ...] | None = None,
    constant_time: NonNegative = 0.0,
    max_density: Share = 1.0,
    prunable: masks.Globs = masks.KERNELS,
    index: str = "bitmap",
) -> Algorithm:
    """FedAvg within a mask that the server reconfigures at regular intervals.

    In round t, a positive multiple of `reconfigure_every`, the server applies the rule
    of `rule.make_rule` to the sum of n_k z_k over the cohort, at the rate `prune_rate`
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
        squared, weight = uplink["squared_gradients"], ctx.client.num_examples
        sent = jnp.where(squared.sent, weight, jnp.zeros_like(weight))
        return {
            "mean": masked.summand(ctx, uplink),
            "squared": means.weighted_sum(squared.values, sent),
        }

    def aggregate(key, ctx, server, total):
        old, squared = server.model, total["squared"]
        mean, due = masked.averaged(old, total["mean"]), squared["weight"] > 0
        halvings = ctx.round.astype(jnp.float32) / half_life
        new = lax.cond(
            due, lambda: reconfigure(mean, squared["sum"], halvings), lambda: mean
        )
        return masked.moved(ctx.round, server, new), {}

    changed = {"update": update, "contribute": contribute, "aggregate": aggregate}
    return frozen.replace(init_client=init_client, **changed)
