"""FedRTS: the server draws the mask from posteriors that votes of clients update.

Huang et al., "FedRTS: Federated Robust Pruning via Combinatorial Thompson Sampling",
NeurIPS 2025, https://arxiv.org/abs/2501.19122. With `rule='gradient'` the server grows
by the mean gradient instead, as FedTiny does (Huang et al., ICDCS 2023,
https://arxiv.org/abs/2212.01977); FedTiny's choice of the first mask is not here.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from sparsefl_jax.algorithms.masked import KERNELS, averaged, layer_counts, spdst
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.types import Array, Key, PyTree, SparseModel
from sparsefl_jax.core.validate import in_range, one_of, whole
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import (
    layer_densities,
    masks,
    regrow,
    schedules,
    top_k,
    trees,
)
from sparsefl_jax.training import local, means
from sparsefl_jax.training.screening import screen
from sparsefl_jax.wire.messages import (
    free_positions,
    pack_up,
    renewed,
    unpack_model,
)
from sparsefl_jax.wire.packets import Packet

GAMMA, VOTE_WEIGHT = 0.5, 10.0  # the paper's gamma and lambda


class Server(NamedTuple):
    """The global model and the Beta posterior of each prunable entry."""

    model: SparseModel
    since: Array  # shape=(), int32: first round whose broadcast carries the mask
    a: PyTree  # float32, prunable leaves; 1 plus the votes for an entry
    b: PyTree  # float32, the same against it


class Rule(NamedTuple):
    """How gradients of clients and weights choose the next mask."""

    pack: Callable  # (grads, named, sent, index) -> packet of what clients name
    summand: Callable  # (ctx, model, grown, weight) -> what the server adds up besides
    choose: Callable  # (key, round, server, mean, total) -> (model, a, b)


@method
def fedrts(
    model: Model,
    optimizer: Optimizer,
    *,
    density: float,
    rule: str = "thompson",
    adjust_every: int = 10,
    adjust_until: int = 300,
    prune_rate: float = 0.4,
    gamma: float = GAMMA,
    vote_weight: float = VOTE_WEIGHT,
    start: str = "random",
    allocation: str = "erk",
    prunable: Sequence[str] = KERNELS,
    index: str = "packed",
) -> Algorithm:
    """FedAvg within a mask of K_l entries a layer that the server draws anew at times.

    In round t the k_l = int(r_t K_l) weakest entries of a layer are in doubt, at most
    as many as are pruned; r_t falls from `prune_rate` to 0 in round `adjust_until` by
    half a cosine. An alive entry gets the vote X = (1 - gamma) [it is one of the K_l -
    k_l largest weights of the aggregate] + gamma (the share of the cohort, by samples,
    in whose weights it is). In the rounds t > 0 below `adjust_until` that are multiples
    of `adjust_every`, clients also name the k_l pruned entries of each layer with the
    largest gradient, on the first batch of their last epoch, at the trained weights. A
    pruned entry gets X = (1 - gamma) / 2 + gamma (the share of the cohort that names
    it). Votes add `vote_weight` X to a and `vote_weight` (1 - X) to b; then the server
    draws from Beta(a, b) for every entry, and the K_l largest of each layer are the new
    mask. With `rule='gradient'` clients send the gradients of the entries that they
    name; the server prunes the k_l smallest weights of the aggregate and grows the
    k_l largest mean gradients: no client names what it prunes in this round, so that
    cannot come back at once. What grows starts at 0.

    Down and up: alive weights, dense leaves and statistics, float32; down the positions
    of a new mask; up, in rounds that adjust, the positions of the entries named, with
    `rule='gradient'` also 32 bits for each. FLOPs: such a round is charged the dense
    gradient of a batch and n log2(n) over the n prunable weights.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it.
      density: share of alive prunable weights, in (0, 1]; K_l = int(n_l d_l). The
        paper's density also counts the dense leaves.
      rule: 'thompson' or 'gradient'.
      adjust_every: rounds between adjustments.
      adjust_until: the round in which the rate reaches 0.
      prune_rate: share of the alive weights in doubt in round 0, in [0, 1].
      gamma: how much clients' votes count beside the aggregate's, in [0, 1]; only
        'thompson' takes another than 0.5.
      vote_weight: lambda, above 0; only 'thompson' takes another than 10.
      start: 'random', or 'magnitude' as in the released code: the first mask.
      allocation: as in `pdst`.
      prunable: globs of the leaves that can be pruned; the paper leaves the last layer
        dense.
      index: how positions are written, see `packets.Packet`.

    Raises:
      ValueError: an argument is out of range or not read, or a name is unknown.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = fedrts(model, optimizer, density=0.2)
    """
    one_of("rule", rule, ("thompson", "gradient"))
    one_of("start", start, ("random", "magnitude"))
    whole("adjust_every", adjust_every, 1)
    whole("adjust_until", adjust_until, 1)
    in_range("prune_rate", prune_rate, "[0, 1]")
    loss_fn, select = local.objective(model), masks.prunable(model.macs, prunable)
    counts = layer_counts(allocation, density, select)
    by_magnitude = start == "magnitude"
    rates = schedules.cosine(prune_rate, adjust_until)

    def budget(params, round):
        alive, sizes = counts(params), trees.layer_sizes(params, select)
        doubt = jnp.asarray(in_doubt(rates, alive, sizes))
        return jnp.asarray(alive), doubt[jnp.minimum(round, adjust_until)]

    def due(round):
        return (round > 0) & (round % adjust_every == 0) & (round < adjust_until)

    chosen = thompson if rule == "thompson" else by_gradient
    voting = chosen(budget, due, select, gamma, vote_weight)

    # Its broadcast and deploy also serve a mask that changes.
    frozen = spdst(model, optimizer, prunable=prunable, index=index)

    def init(key, start):
        scores = masks.uniform_scores(key, start.params, select)
        if by_magnitude:  # static branch
            scores = jax.tree.map(jnp.abs, start.params)
        mask = top_k.largest(scores, jnp.asarray(counts(scores)), select)
        ones, _ = trees.split(jax.tree.map(jnp.ones_like, start.params), select)
        return Server(masks.pruned(start, mask), jnp.int32(0), ones, ones)

    def update(key, ctx, downlink, client, batches):
        received, adjust = unpack_model(downlink), due(ctx.round)
        train_key, screen_key = jax.random.split(key)
        tx = optimizer(ctx.round)
        trained = local.train(train_key, loss_fn, tx, received, batches)
        zeros = jax.tree.map(jnp.zeros_like, received)

        def name():
            grads, work = screen(screen_key, loss_fn, trained, batches, select=select)
            doubt = budget(received.params, ctx.round)[1]
            return *_steepest(grads, trained.model.mask, doubt, select), work

        blank = zeros.params, zeros.mask, trained.metrics["work"]
        grads, named, work = lax.cond(adjust, name, lambda: blank)
        grads, named = (trees.split(tree, select)[0] for tree in (grads, named))
        uplink = pack_up(trained.model, received.mask, select, index=index)
        uplink["grown"] = voting.pack(grads, named, adjust, index)
        return uplink, client, trained.metrics | {"work": work}

    def contribute(ctx, uplink):
        sent, grown = unpack_model(uplink), uplink["grown"]
        weight = ctx.client.num_examples
        grown_weight = jnp.where(grown.sent, weight, jnp.zeros_like(weight))
        mean = means.weighted_sum((sent.params, sent.stats), weight)
        return {"mean": mean} | voting.summand(ctx, sent, grown, grown_weight)

    def aggregate(key, round, server, total):
        mean = averaged(server.model, total["mean"])
        new, a, b = voting.choose(key, round, server, mean, total)
        any_sent = total["mean"]["weight"] > 0
        new = jax.tree.map(lambda n, o: jnp.where(any_sent, n, o), new, mean)
        since = renewed(round, mean.mask, new.mask, server.since)
        return Server(new, since, a, b), {}

    return frozen._replace(
        init=init,
        update=update,
        contribute=contribute,
        aggregate=aggregate,
        alive=lambda round, start: density,
    )


def _steepest(
    grads: PyTree, mask: PyTree, count: Array, select: PyTree
) -> tuple[PyTree, PyTree]:
    """Returns the steepest pruned entries' gradients, and their mask."""
    steep, pruned = jax.tree.map(jnp.abs, grads), jax.tree.map(jnp.logical_not, mask)
    named = top_k.largest(steep, count, select, within=pruned)
    return masks.apply(grads, named), named


def thompson(
    budget: Callable, due: Callable, select: PyTree, gamma: float, vote_weight: float
) -> Rule:
    """Returns the rule that draws from posteriors; arguments as in `fedrts`."""
    in_range("gamma", gamma, "[0, 1]")
    in_range("vote_weight", vote_weight, "(0, inf)")

    def core(model, round):
        alive, doubt = budget(model.params, round)
        size = jax.tree.map(jnp.abs, model.params)
        kept = top_k.largest(size, alive - doubt, select, within=model.mask)
        return trees.split(kept, select)[0]

    def summand(ctx, sent, grown, weight):
        strong = core(sent, ctx.round), ctx.client.num_examples
        named = means.weighted_sum(grown.mask, weight)
        return {"grown": named, "core": means.weighted_sum(*strong)}

    def choose(key, round, server, mean, total):
        blank = jax.tree.map(jnp.zeros_like, server.a)
        shares, grown = (
            means.weighted_mean(total[n], blank) for n in ("core", "grown")
        )
        strong, alive = core(mean, round), trees.split(mean.mask, select)[0]

        def votes(m, c, s, g):
            x = gamma * jnp.where(m, s, g) + (1 - gamma) * jnp.where(m, c, 0.5)
            heard = (m | due(round)) & (total["core"]["weight"] > 0)
            weight = jnp.where(heard, jnp.float32(vote_weight), 0.0)
            return weight, weight * x

        pairs = [jax.tree.leaves(tree) for tree in (alive, strong, shares, grown)]
        found = [votes(*leaves) for leaves in zip(*pairs, strict=True)]
        weight, gain = (
            jax.tree.unflatten(jax.tree.structure(alive), list(leaves))
            for leaves in zip(*found, strict=True)
        )
        a = jax.tree.map(jnp.add, server.a, gain)
        b = jax.tree.map(lambda b, w, g: b + (w - g), server.b, weight, gain)

        def draw():
            scores = beta_logits(key, a, b)
            scores = trees.merge(scores, trees.split(mean.params, select)[1])
            return top_k.largest(scores, budget(scores, round)[0], select)

        mask = lax.cond(due(round), draw, lambda: mean.mask)
        return masks.pruned(mean, mask), a, b

    def pack(grads, named, sent, index):
        free = free_positions(index)
        return Packet(named, named, sent=sent, bits=0, index=index, assumed=free)

    return Rule(pack, summand, choose)


def by_gradient(
    budget: Callable, due: Callable, select: PyTree, gamma: float, vote_weight: float
) -> Rule:
    """Returns FedTiny's rule; arguments as in `fedrts`."""
    if (gamma, vote_weight) != (GAMMA, VOTE_WEIGHT):
        raise ValueError(
            f"gamma={gamma}, vote_weight={vote_weight}, expected {GAMMA} and "
            f"{VOTE_WEIGHT} with rule='gradient', which has no votes"
        )

    def summand(ctx, sent, grown, weight):
        return {"grown": means.weighted_sum(grown.values, weight)}

    def choose(key, round, server, mean, total):
        blank = jax.tree.map(jnp.zeros_like, server.a)
        steep = jax.tree.map(jnp.abs, means.weighted_mean(total["grown"], blank))
        scores = trees.merge(steep, trees.split(mean.params, select)[1])
        alive, doubt = budget(scores, round)

        def exchange():
            counts = alive - doubt, alive
            return regrow.exchange(*pair, scores, *counts, select=select)

        pair = mean.params, mean.mask
        params, mask = lax.cond(due(round), exchange, lambda: pair)
        return SparseModel(params, mask, mean.stats), server.a, server.b

    def pack(grads, named, sent, index):
        free = free_positions(index)
        return Packet(grads, named, sent=sent, index=index, assumed=free)

    return Rule(pack, summand, choose)


def in_doubt(rates: np.ndarray, alive: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Returns how many alive entries of each layer are in doubt in each round.

    Args:
      rates: [T] float64, r_t.
      alive: [L], K_l.
      sizes: [L], all entries of each layer.

    Returns:
      [T, L] int32, int(r_t K_l), at most the entries that are pruned.

    Example:
      >>> alive, sizes = np.array([50, 90]), np.array([100, 100])
      >>> in_doubt(np.array([0.4, 0.0]), alive, sizes).tolist()
      [[20, 10], [0, 0]]
    """
    wanted = layer_densities.whole(rates[:, None], alive)
    return np.minimum(wanted, sizes - alive).astype(np.int32)


def beta_logits(key: Key, a: PyTree, b: PyTree) -> PyTree:
    """Draws from Beta(a, b) for every entry, and returns the logits of the draws.

    They have the order of the draws, and none rounds to 1. All leaves are one draw, as
    a sampler takes long to compile.

    Args:
      key: a typed key.
      a, b: float32 trees, above 0.

    Returns:
      A float32 tree like `a`.

    Example:
      >>> a, b = {'w': jnp.array([1e6, 1.])}, {'w': jnp.array([1., 1e6])}
      >>> (beta_logits(jax.random.key(0), a, b)['w'] > 0).tolist()
      [True, False]
    """
    flat, unravel = ravel_pytree(a)
    pair = jnp.stack([flat, ravel_pytree(b)[0]])
    of_a, of_b = jax.random.loggamma(key, pair)
    return unravel(of_a - of_b)
