"""FedPM: which random weights to keep is trained, the weights themselves never change.

Isik et al., "Sparse Random Networks for Communication-Efficient Federated Learning",
ICLR 2023, https://arxiv.org/abs/2209.15328. The constants, the estimator and the merge
are those of the authors' code.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from sparsefl_jax.core.algorithm import Algorithm
from sparsefl_jax.core.types import PyTree, SparseModel, Work
from sparsefl_jax.sparsity import supermask, trees
from sparsefl_jax.training import local, means
from sparsefl_jax.wire.packets import Packet


class Server(NamedTuple):
    """Weights that stay, and how likely each of them is kept."""

    frozen: PyTree  # float32: c or -c; normalisation (1, 0)
    scores: PyTree  # float32, logits of the probabilities; None for normalisation
    stats: PyTree  # float32


WEIGHTS = ("constants", "initial")
KNOWN_WEIGHTS = "every client is taken to know the weights that training starts from"


def fedpm(
    model,
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
      model: the network and its loss, a `Model`.
      optimizer: the clients', of the scores, as `local.make_optimizer` returns it.
      weights: 'constants', as above, or 'initial': those of the model it starts from,
        at no charge, as if all knew them; a 0 among them counts as dropped.
      epsilon: what a mask's zero counts as in the mean, (0, 0.5).
      keep_optimizer: clients keep their optimizer's state from round to round.

    Raises:
      ValueError: an argument is out of range; by `init` on leaves of an unknown kind.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.make_optimizer()
      >>> method = fedpm(model, optimizer, keep_optimizer=False)
    """
    if not 0 < epsilon < 0.5:
        raise ValueError(f"epsilon={epsilon}, expected in (0, 0.5)")
    if weights not in WEIGHTS:
        raise ValueError(f"weights={weights!r}, expected one of {', '.join(WEIGHTS)}")
    loss_fn = local.objective(model)
    assumed = KNOWN_WEIGHTS if weights == "initial" else ""

    def init(key, start: SparseModel):
        weight_key, score_key = jax.random.split(key)
        frozen = supermask.signed_constants(weight_key, start.params)  # or refuses
        if weights == "initial":  # static branch
            frozen = start.params
        scored, _ = trees.split(frozen, supermask.has_score(frozen))
        return Server(
            frozen, supermask.fill(score_key, scored, jax.random.normal), start.stats
        )

    def init_client(key, server, info):
        del key, info
        return local.init_optimizer(optimizer, server.scores, keep_optimizer)

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
            loss, (stats, sums) = loss_fn(key, params, stats, x, y, weight)
            alive = local.work(sums["count"], supermask.mask_of(params)).forward
            return loss, (stats, sums | {"alive": alive})

        start = SparseModel(scores, None, downlink["stats"].values)
        nothing = jax.tree.map(lambda _: jnp.zeros((), jnp.float32), frozen)
        trained = local.train(
            train_key,
            masked_loss,
            optimizer(ctx.round),
            start,
            batches,
            opt_state=client,
            sums={"alive": nothing},
        )
        metrics = dict(trained.metrics)
        alive = metrics.pop("alive")
        dense = local.dense_work(metrics["count"], frozen)
        metrics["work"] = Work(alive, alive, dense.weight_grad, dense.extra)
        mask = supermask.mask_of(supermask.draw(mask_key, trained.model.params, frozen))
        mask, _ = trees.split(mask, supermask.has_score(mask))
        uplink = {
            "mask": Packet(mask, bits=1, index="entropy"),
            "stats": Packet(trained.model.stats),
        }
        return uplink, trained.opt_state, metrics

    def contribute(ctx, uplink):
        del ctx
        values = {name: packet.values for name, packet in uplink.items()}
        return means.weighted_sum(values, jnp.float32(1))

    def aggregate(key, round, server, total):
        del key, round
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

    def deploy(key, server):
        params = supermask.draw(key, server.scores, server.frozen)
        return {"global": SparseModel(params, supermask.mask_of(params), server.stats)}

    return Algorithm(
        init, broadcast, update, contribute, aggregate, deploy, init_client
    )
