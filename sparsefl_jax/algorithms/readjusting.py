"""Clients that readjust a mask after training, by magnitude and gradient.

In FedDST they readjust the server's mask, and the server does too: Bibikar et al.,
"Federated Dynamic Sparse Training: Computing Less, Communicating Less, Yet Learning
Better", AAAI 2022, https://arxiv.org/abs/2112.09824. Layer densities, rounds and costs
are those of the released code; what it does otherwise than the paper is
`variant='release'`.

In FedSpa they have masks of their own over a dense model of the server: Huang et al.,
"Achieving Personalized Federated Learning with Sparse Local Models", 2022,
https://arxiv.org/abs/2201.11380. It has no released code. How masks are drawn and
changed follows the code of DisPFL (Dai et al., ICML 2022), which has the same rules.
FLASH's experiments (Table 8) run it with one random mask that stays.
"""

from functools import partial
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.algorithms import masked
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method, no_client_state
from sparsefl_jax.core.check import check
from sparsefl_jax.core.types import Array, Count, Fraction, Share, SparseModel
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import layer_densities, masks, schedules, top_k, trees
from sparsefl_jax.training import local, means
from sparsefl_jax.training.screening import readjust
from sparsefl_jax.wire import packets
from sparsefl_jax.wire.packets import Packet, pack_up, unpack_model


class Dense(NamedTuple):
    """The dense model, and the seed of the masks."""

    model: SparseModel  # mask: the shared one if masks stay, else full
    seed: Array  # shape=(), uint32


@method
def feddst(
    model: Model,
    optimizer: Optimizer,
    *,
    density: Share,
    adjust_until: Annotated[int, "[2, inf)"] | None = None,
    rounds: Count | None = None,
    adjust_every: Count = 10,
    prune_rate: Fraction = 0.5,
    allocation: masked.Allocation = "erk_sparsity",
    variant: Literal["paper", "release"] = "paper",
    prunable: masks.Globs = masks.KERNELS,
    index: str = "packed",
) -> Algorithm:
    """FedDST: in some rounds clients prune and regrow; the server prunes the union.

    The first mask keeps the largest initial weights of each layer. In rounds 1, 1 + R,
    1 + 2 R, ... below `adjust_until`, with R = `adjust_every`, a client readjusts after
    its last epoch: it prunes each layer to its share of the density (1 - a_t) d by
    magnitude, and grows it to its share of d where the gradient of its last batch, at
    the trained weights, is largest. What has grown is uploaded untrained, as 0. The
    rate a_t falls from `prune_rate` to 0 in round `adjust_until` by half a cosine. The
    server takes the mean of each weight over the clients whose mask has it, and prunes
    each layer of the union of masks to its share of d by magnitude.

    Down and up: alive weights, dense leaves and statistics, float32; positions where
    they changed. FLOPs: a readjustment is charged the dense gradient of a batch and n
    log2(n + 1) over the n prunable weights.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it.
      density: share of alive prunable weights.
      adjust_until: the round in which the rate reaches 0; None: half of the rounds, as
        in the released code.
      rounds: of the stage; needed without `adjust_until`.
      adjust_every: rounds between readjustments.
      prune_rate: share of the alive weights that a readjustment exchanges in round 0.
      allocation: as in `pdst`.
      variant: 'paper' or 'release'. In the released code growth chooses among all
        entries, so that surviving weights are set to 0 and fewer entries are alive; the
        server prunes no layer unless all of them together are too dense; and a_t is
        `prune_rate` in every readjustment.
      prunable: globs of the leaves that can be pruned.
      index: how positions are written, see `packets.Packet`.

    Raises:
      ValueError: an argument is out of range, or a name is unknown.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = feddst(model, optimizer, density=0.2, rounds=400)
    """
    release, loss_fn = variant == "release", local.objective(model)
    select = masks.prunable(model.macs, prunable)
    counts = masked.layer_counts(allocation, density, select)
    until = schedules.end(adjust_until, rounds, 1, 2, least=2)
    rates = schedules.cosine(prune_rate, until)[1:-1:adjust_every]
    if release:  # static branch
        rates = np.full_like(rates, prune_rate)

    def due(round):
        return (round > 0) & ((round - 1) % adjust_every == 0) & (round < until)

    def init(key, start):
        size = jax.tree.map(jnp.abs, start.params)
        mask = top_k.keep_top(size, counts(start.params), select)
        return masked.Server(masks.prune(start, mask), jnp.int32(0))

    def train(key, ctx, received, client, batches):
        train_key, screen_key = jax.random.split(key)
        tx = optimizer(ctx.round)
        trained = local.train(train_key, loss_fn, tx, received, batches)

        def move(trained):
            params, step = trained.model.params, local.own_steps(batches, -1) - 1
            table = jnp.asarray(np.stack([counts(params, rate) for rate in rates]))
            kept = table[(ctx.round - 1) // adjust_every], jnp.asarray(counts(params))
            options = {"select": select, "step": step, "anywhere": release}
            return readjust(screen_key, loss_fn, trained, batches, *kept, **options)

        return jax.lax.cond(due(ctx.round), move, lambda same: same, trained), client

    def aggregate(key, ctx, server, total):
        mean = masked.covered_average(ctx, server.model, total)
        mask = top_k.largest_alive(mean, counts(mean.params), select)
        if release:  # static branch
            sparse = masks.density(mean.mask, select) <= density
            mask = jax.tree.map(lambda u, m: jnp.where(sparse, u, m), mean.mask, mask)
        return masked.move(ctx.round, server, masks.prune(mean, mask)), {}

    method = masked.training_within(select, index, train)
    return method.replace(init, aggregate, contribute=masked.covered_summand)


@method
def fedspa(
    model: Model,
    optimizer: Optimizer,
    *,
    density: Share,
    mask_update: Literal["static", "dst"] = "static",
    shared: bool = True,
    prune_rate: Fraction | None = None,
    adjust_until: Count | None = None,
    rounds: Count | None = None,
    allocation: masked.Allocation = "erk",
    prunable: masks.Globs = masks.KERNELS,
    index: str = "packed",
) -> Algorithm:
    """FedSpa: clients train the server's model within masks of their own.

    A mask has int(n_l d_l) random entries of each layer. A client sends the change of
    the weights within its mask, and the server adds the uniform mean of the changes,
    zeros included, to its dense model. Static masks stay as they were drawn. With
    'dst' a client changes its mask after training, in rounds t below `adjust_until`: it
    prunes the ceil(r_t nnz_l) smallest weights of a layer and grows as many where the
    gradient of a batch, as in an evaluation, is largest. r_t falls from `prune_rate` to
    0 in round `adjust_until` by half a cosine. What grows starts at the server's value.

    Static masks follow from a seed and the client's index: down and up, 32 bits for
    each of their entries, dense leaves and statistics. A client with a mask of its own
    receives the seed before its first round, 32 bits. With 'dst' the server, which
    sees only sums, knows no client's mask: down the whole model, up the values and
    positions of the mask that was trained. A client keeps its mask.

    The optimizer sees the gradients of all weights, as in the code of DisPFL, whose
    training this is: pruned weights count in a norm that is clipped. The ledger's FLOPs
    are those of the mask; a change of masks is charged the dense gradient of a batch
    and n log2(n + 1) over the n prunable weights.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it.
      density: share of alive prunable weights of a client.
      mask_update: 'static' or 'dst' (dynamic sparse training).
      shared: whether all clients begin with the same mask.
      prune_rate: share of a layer's alive weights that a client exchanges in round 0;
        only with 'dst', where None means 0.5.
      adjust_until: the round in which the rate reaches 0; only with 'dst', where None
        means the last one.
      rounds: of the stage; needed with 'dst' and no `adjust_until`.
      allocation: as in `pdst`.
      prunable: globs of the leaves that can be pruned.
      index: how positions are written with 'dst', see `packets.Packet`; those of static
        masks do not travel.

    Raises:
      ValueError: an argument is out of range, a name is unknown, or the schedule does
        not go with `mask_update`.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> static = fedspa(model, optimizer, density=0.05)
    """
    loss_fn, select = local.objective(model), masks.prunable(model.macs, prunable)
    counts = masked.layer_counts(allocation, density, select)
    dynamic = mask_update == "dst"
    same = shared and not dynamic
    check("prune_rate", prune_rate, Fraction | None if dynamic else (None,))
    check("adjust_until", adjust_until, Count | None if dynamic else (None,))
    if dynamic:
        most = 0.5 if prune_rate is None else prune_rate
        until = schedules.end(adjust_until, rounds)
        rates = schedules.cosine(most, until)[:-1, None]
        tested = local.objective(model, train=False)

    def draw(seed, client):
        key, (params, _) = jax.random.key(seed), model.shapes()
        key = key if shared else jax.random.fold_in(key, client)
        scores = masks.uniform_scores(key, params, select)
        return top_k.keep_top(scores, counts(params), select)

    def held(server, client):
        return server.model.mask if shared else draw(server.seed, client)

    def send_once(server):
        return {} if same else {"seed": Packet(server.seed)}

    def init(key, start):
        seed = jax.random.bits(key, (), jnp.uint32)
        mask = draw(seed, 0) if same else masks.full(start.params)
        return Dense(start._replace(mask=mask), seed)

    def init_client(key, received, info):
        return draw(received["seed"].values, info.index)

    def broadcast(key, ctx, server):
        stats = Packet(server.model.stats)
        if dynamic:  # static branch
            return {"params": Packet(server.model.params), "stats": stats}
        weights, dense = trees.split(server.model.params, select)
        mask, _ = trees.split(held(server, ctx.client.index), select)
        packed = packets.pack_slice(weights, mask)
        return {"weights": packed, "dense": Packet(dense), "stats": stats}

    def exchange(key, round, trained, batches):
        """Returns a trained client with the mask of its next round."""
        alive = counts(trained.model.params)
        gone = layer_densities.whole_up(rates, alive)

        def move(trained):
            kept = jnp.asarray(alive - gone)[round], jnp.asarray(alive)
            return readjust(key, tested, trained, batches, *kept, select=select)

        return jax.lax.cond(round < len(gone), move, lambda same: same, trained)

    def update(key, ctx, downlink, client, batches):
        train_key, screen_key = jax.random.split(key)
        if dynamic:  # static branch
            start = masks.prune(packets.unpack_params(downlink), client)
        else:
            start = unpack_model(downlink)
        given = train_key, loss_fn, optimizer(ctx.round), start, batches
        trained = local.train(*given, gradients="dense")  # as in DisPFL's code
        if not same:  # static branch: the server's mask is not the client's
            density = masks.density(start.mask, masks.select_all(start.mask))
            trained = trained._replace(metrics=trained.metrics | {"density": density})
        delta = jax.tree.map(jnp.subtract, trained.model.params, start.params)
        change = trained.model._replace(params=delta)
        known = None if dynamic else start.mask  # a dynamic mask does not come down
        uplink = pack_up(change, known, select, index=index)
        if dynamic:  # static branch
            trained = exchange(screen_key, ctx.round, trained, batches)
            client = trained.model.mask
        return uplink, client, trained.metrics

    def personalize(key, server, client, info):
        mask = client if dynamic else held(server, info.index)
        return {"personal": masks.prune(server.model, mask)}

    def aggregate(key, ctx, server, total):
        return server._replace(model=masked.add_mean(server.model, total)), {}

    def deploy(key, server):
        return {"global": masks.prune(server.model, server.model.mask)}

    contribute = partial(masked.summand, weight=means.WEIGHTINGS["uniform"])
    steps = init, broadcast, update, contribute, aggregate, deploy
    keeps = init_client if dynamic else no_client_state
    return Algorithm(*steps, keeps, None if same else personalize, send_once=send_once)
