"""FedPM: which random weights to keep is trained, the weights themselves never change.

Isik et al., "Sparse Random Networks for Communication-Efficient Federated Learning",
ICLR 2023, https://arxiv.org/abs/2209.15328. The constants, the estimator and the merge
are those of the authors' code.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from sparsefl_jax.core.algorithm import Algorithm
from sparsefl_jax.core.types import EmptyState, PyTree, SparseModel, Work
from sparsefl_jax.sparsity import supermask
from sparsefl_jax.training import local, means
from sparsefl_jax.wire.packets import Packet, split


class Server(NamedTuple):
    """Weights that stay, and how likely each of them is kept."""

    frozen: PyTree  # float32: c or -c; normalisation (1, 0)
    scores: PyTree  # float32, logits of the probabilities; None for normalisation
    stats: PyTree  # float32


WEIGHTS = ("constants", "initial")
KNOWN_WEIGHTS = "every client is taken to know the weights that training starts from"


def fedpm(
    loss_fn,
    optimizer,
    *,
    weights: str = "constants",
    epsilon: float = 0.01,
    keep_optimizer: bool = True,
) -> Algorithm:
    """FedPM: clients train the scores s of a mask m ~ Bernoulli(sigmoid(s)).

    Every weight and bias of a layer with a kernel is +-c, c = e / sqrt(fan-in), and has
    a score that starts at N(0, 1); normalisation is frozen at scale 1 and bias 0. Every
    forward pass draws its own mask. A mask that an earlier stage would hand on is not
    used. `unanimous`: the share of the scores that a cohort agrees on.

    Down: the scores, float32. Up: one mask drawn from the trained scores, entropy-coded
    in one go. Both: the normalisation statistics. The weights follow from the seed that
    all share: common knowledge. The server averages masks and statistics, a client's
    vote being epsilon or 1 - epsilon, and knows no earlier round: its scores are the
    logits of that mean, at most log(1 / epsilon - 1) in size. Deployed is one mask.

    The ledger's FLOPs: forward and to the inputs at the masks that were drawn, to the
    weights dense, as every score needs its gradient; drawing is not counted.

    Args:
      loss_fn: as `local.cross_entropy` returns it.
      optimizer: the clients', of the scores, as `local.make_optimizer` returns it.
      weights: 'constants', as above, or 'initial': those of the model it starts from,
        at no charge, as if all knew them; a 0 among them counts as dropped.
      epsilon: what a mask's zero counts as in the mean, (0, 0.5).
      keep_optimizer: clients keep their optimizer's state from round to round.

    Raises:
      ValueError: an argument is out of range; by `init` on leaves of an unknown kind.

    Example:
      >>> method = fedpm(None, None, keep_optimizer=False)
    """
    if not 0 < epsilon < 0.5:
        raise ValueError(f"epsilon={epsilon}, expected in (0, 0.5)")
    if weights not in WEIGHTS:
        raise ValueError(f"weights={weights!r}, expected one of {', '.join(WEIGHTS)}")
    assumed = KNOWN_WEIGHTS if weights == "initial" else ""

    def init(key, model: SparseModel):
        weight_key, score_key = jax.random.split(key)
        frozen = supermask.signed_constants(weight_key, model.params)  # or refuses
        if weights == "initial":  # static branch
            frozen = model.params
        scored, _ = split(frozen, supermask.has_score(frozen))
        return Server(
            frozen, supermask.fill(score_key, scored, jax.random.normal), model.stats
        )

    def init_client(key, server, info):
        del key, info
        return optimizer(0).init(server.scores) if keep_optimizer else EmptyState()

    def broadcast(key, ctx, server):
        del key, ctx
        return {
            "frozen": Packet(server.frozen, bits=0, assumed=assumed),
            "scores": Packet(server.scores),
            "stats": Packet(server.stats),
        }

    def update(key, ctx, downlink, client, batches):
        frozen, scores = downlink["frozen"].values, downlink["scores"].values
        train_key, mask_key = jax.random.split(key)

        def masked_loss(key, scores, stats, x, y, weight):
            draw_key, key = jax.random.split(key)
            params = supermask.draw(draw_key, scores, frozen)
            loss, (stats, told) = loss_fn(key, params, stats, x, y, weight)
            alive = local.work(told["count"], supermask.mask_of(params)).forward
            return loss, (stats, told | {"alive": alive})

        tx = optimizer(ctx.round)
        state = local.start(
            tx, scores, downlink["stats"].values, client if keep_optimizer else None
        )
        nothing = jax.tree.map(lambda _: jnp.zeros((), jnp.float32), frozen)
        state = state._replace(sums=state.sums | {"alive": nothing})
        state = local.train(train_key, masked_loss, tx, state, batches)
        told = dict(state.sums)
        alive = told.pop("alive")
        dense = local.dense_work(told["count"], frozen)
        work = Work(alive, alive, dense.weight_grad, dense.extra)
        mask = supermask.mask_of(supermask.draw(mask_key, state.params, frozen))
        mask, _ = split(mask, supermask.has_score(mask))
        uplink = {
            "mask": Packet(mask, bits=1, index="entropy"),
            "stats": Packet(state.stats),
        }
        client = state.opt_state if keep_optimizer else client
        return uplink, client, {**told, "work": work}

    def contribute(ctx, uplink):
        del ctx
        values = {name: packet.values for name, packet in uplink.items()}
        return means.weighted_sum(values, jnp.float32(1))

    def aggregate(key, ctx, server, total):
        del key, ctx
        old = {"mask": server.scores, "stats": server.stats}
        mean = means.weighted_mean(total, old)
        nobody = total["weight"] == 0

        def score(votes, old):
            new = jax.scipy.special.logit(epsilon + (1 - 2 * epsilon) * votes)
            return jnp.where(nobody, old, new)

        scores = jax.tree.map(score, mean["mask"], server.scores)
        votes = jnp.concatenate([v.reshape(-1) for v in jax.tree.leaves(mean["mask"])])
        told = {"unanimous": jnp.mean((votes == 0) | (votes == 1), dtype=jnp.float32)}
        return Server(server.frozen, scores, mean["stats"]), told

    def deploy(key, server, client, info):
        del client
        if info is not None:  # static branch: no personal models
            return {}
        params = supermask.draw(key, server.scores, server.frozen)
        return {"global": SparseModel(params, supermask.mask_of(params), server.stats)}

    return Algorithm(
        init, init_client, broadcast, update, contribute, aggregate, deploy
    )
