"""Complement Sparsification: the server prunes, the clients send what it pruned.

Jiang and Borcea, "Complement Sparsification: Low-Overhead Model Pruning for Federated
Learning", AAAI 2023, https://arxiv.org/abs/2303.06237. Sparse both ways after a dense
first round.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from sparsefl_jax.core.algorithm import Algorithm
from sparsefl_jax.core.types import Array, PyTree, SparseModel
from sparsefl_jax.sparsity import masks, trees
from sparsefl_jax.training import local, means
from sparsefl_jax.wire.messages import pack_down, pack_up, renewed, unpack_model


class Server(NamedTuple):
    """The pruned model, its mask being where it is not zero, and the one before."""

    model: SparseModel
    unpruned: PyTree  # float32 like params: the aggregate that the last purge cut
    since: Array  # shape=(), int32: first round whose broadcast carries the mask


def complement(
    model,
    optimizer,
    *,
    density: float,
    aggregation_ratio: float = 1.5,
    index: str = "bitmap",
) -> Algorithm:
    """CS: clients train all weights and send the new values of those that were zero.

    Down: the weights that are not zero and their positions, statistics. Up: what the
    client trained where it received zeros, if it is not zero, and its positions,
    statistics; in round 0 the whole model. What it trained elsewhere is discarded.
    Every tensor is pruned by itself, biases too: the entry of one that is not would
    stay as it is from round 1 on. The client's FLOPs are counted as dense, because its
    weights are so after one step; `ledger.complement_saving` is the paper's count.

    Args:
      model: the network and its loss, a `Model`.
      optimizer: the clients', as `local.make_optimizer` returns it; its state is new in
        every round.
      density: 1 - p, the share of every tensor that the server keeps, in (0, 1].
      aggregation_ratio: eta', by which the clients' mean is scaled before it is added,
        above 0; the paper's theory wants it between 1 and 1 / learning rate.
      index: how positions are written, see `packets.Packet`.

    Raises:
      ValueError: an argument is out of range.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.make_optimizer()
      >>> method = complement(model, optimizer, density=0.5)
    """
    if not 0 < density <= 1:
        raise ValueError(f"density={density}, expected in (0, 1]")
    if not 0 < aggregation_ratio < float("inf"):
        raise ValueError(
            f"aggregation_ratio={aggregation_ratio}, expected a finite number above 0"
        )

    loss_fn, everything = local.objective(model), masks.everything(model.macs)

    def init(key, start):
        del key
        params = masks.apply(start.params, start.mask)
        start = SparseModel(params, masks.full(params), start.stats)
        return Server(start, params, jnp.int32(0))

    def broadcast(key, ctx, server):
        del key
        return pack_down(ctx, server.model, server.since, everything, index=index)

    def update(key, ctx, downlink, client, batches):
        received, first = unpack_model(downlink), ctx.round == 0
        dense, tx = received._replace(mask=None), optimizer(ctx.round)
        trained = local.train(key, loss_fn, tx, dense, batches)
        sent = jax.tree.map(
            lambda w, m: (first | ~m) & (w != 0), trained.model.params, received.mask
        )
        new = trained.model._replace(mask=sent)
        uplink = pack_up(new, received.mask, everything, index=index)
        return uplink, client, trained.metrics | _densities(sent)

    def contribute(ctx, uplink):
        sent = unpack_model(uplink)
        return means.weighted_sum((sent.params, sent.stats), ctx.client.num_examples)

    def aggregate(key, round, server, total):
        del key
        old, first = server.model, round == 0
        zeros = jax.tree.map(jnp.zeros_like, old.params)
        # Round 0 replaces the model, unless nobody sent anything; later ones add to it.
        stays, base = (
            jax.tree.map(
                lambda w, z, when=when: jnp.where(when, w, z), old.params, zeros
            )
            for when in (first, ~first)
        )
        mean, stats = means.weighted_mean(total, (stays, old.stats))
        ratio = jnp.where(first, 1.0, aggregation_ratio)
        params = jax.tree.map(lambda b, m: b + ratio * m, base, mean)
        mask = jax.tree.map(lambda w: _kept(w, density), params)
        pruned = SparseModel(masks.apply(params, mask), mask, stats)
        return Server(pruned, params, renewed(round, old.mask, mask, server.since)), {}

    def deploy(key, server):
        del key
        whole = SparseModel(
            server.unpruned, masks.full(server.unpruned), server.model.stats
        )
        return {"global": server.model, "unpruned": whole}

    return Algorithm(
        init,
        broadcast,
        update,
        contribute,
        aggregate,
        deploy,
        alive=lambda round: density,
    )


def _kept(w: Array, density: float) -> Array:
    """What reaches the percentile of |w|, and is not zero."""
    magnitude = jnp.abs(w)
    return (magnitude >= jnp.quantile(magnitude, 1 - density)) & (w != 0)


def _densities(sent: PyTree) -> dict[str, Array]:
    """What a client sent of every kernel, and of all together: Tables 2 and 3."""
    kernels = jax.tree.map(lambda m: m.ndim > 1, sent)
    shares = zip(
        trees.layer_paths(kernels), masks.layer_densities(sent, kernels), strict=True
    )
    of_layers = {f"client_density/{path}": share for path, share in shares}
    return {"client_density": masks.density(sent, kernels)} | of_layers
