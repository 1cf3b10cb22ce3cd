"""FLASH's stage 1: which layers can be sparse (Algorithm 1, Equation 3)."""

from functools import partial

import jax.numpy as jnp

from sparsefl_jax.algorithms.flash import surgery
from sparsefl_jax.algorithms.flash.common import KERNELS, Server, check, no_client
from sparsefl_jax.core.algorithm import Algorithm
from sparsefl_jax.sparsity import layer_densities, masks, n_of_m
from sparsefl_jax.training import means
from sparsefl_jax.wire.messages import pack_down, renewed, unpack_model
from sparsefl_jax.wire.packets import Packet


def sensitivity(
    loss_fn,
    optimizer,
    *,
    density: float,
    prunable=KERNELS,
    prune_rate: float = 0.25,
    prune_rate_decay: bool = True,
    group: int = 0,
) -> Algorithm:
    """FLASH's stage 1: clients tell how dense each layer wants to be (Algorithm 1).

    All start from the same weights and the same random mask and run sparse learning;
    up go L layer densities. The server draws the mask of stage 2 (Eq. 3) and hands on
    the untouched initial weights.

    Args:
      loss_fn: as `local.cross_entropy` returns it.
      optimizer: the clients', as `local.make_optimizer` returns it.
      density: target share of alive prunable weights, in (0, 1].
      prunable: globs of the leaves that can be pruned.
      prune_rate: share of a layer that one surgery exchanges.
      prune_rate_decay: the rate falls linearly to 0 over the local steps.
      group: 0 for unstructured masks, M for N:M masks with N = round(d_l M), at
        least 1.

    Raises:
      ValueError: if an argument is out of range.
    """
    check(density=density, prune_rate=prune_rate)
    learn = partial(
        surgery.sparse_learning,
        loss_fn,
        density=density,
        prune_rate=prune_rate,
        decay=prune_rate_decay,
    )
    if group < 0 or group and round(group * density) < 1:
        raise ValueError(
            f"group={group}, expected 0 or enough that density={density} of a group is "
            "one entry"
        )

    def init(key, model):
        select = masks.prunable(model.params, prunable)
        mask = masks.bernoulli(key, model.params, jnp.float32(density), select)
        return Server(model._replace(mask=mask), jnp.int32(0))

    def broadcast(key, ctx, server):
        del key
        select = masks.prunable(server.model.params, prunable)
        return pack_down(ctx, server.model, server.since, select, index="bitmap")

    def update(key, ctx, downlink, client, batches):
        model = unpack_model(downlink)
        select = masks.prunable(model.params, prunable)
        training = learn(key, optimizer(ctx.round), model, batches, select=select)
        layers = masks.layer_densities(training.mask, select)
        metrics = {**training.state.sums, "work": training.work}
        return {"density": Packet(layers)}, client, metrics

    def contribute(ctx, uplink):
        del ctx
        return means.weighted_sum(uplink["density"].values, jnp.float32(1))

    def aggregate(key, ctx, server, total):
        model = server.model
        select = masks.prunable(model.params, prunable)
        before = masks.layer_densities(model.mask, select)
        mean = means.weighted_mean(total, before)
        sizes = masks.layer_sizes(model.params, select)
        layers = layer_densities.recalibrate(mean, sizes, density)
        if group:  # static branch
            per_group = jnp.clip(jnp.round(layers * group), 1, group).astype(jnp.int32)
            mask = n_of_m.random_n_of_m(key, model.params, per_group, group, select)
        else:
            mask = masks.bernoulli(key, model.params, layers, select)
        since = renewed(ctx, model.mask, mask, server.since)
        return Server(model._replace(mask=mask), since), {}

    def deploy(key, server, client, info):
        del key, client
        return {} if info is not None else {"initial": server.model}

    def alive(round):
        del round  # of a group at least one entry stays
        return min(1.0, density + (1 / group if group else 0.0))

    return Algorithm(
        init, no_client, broadcast, update, contribute, aggregate, deploy, alive
    )
