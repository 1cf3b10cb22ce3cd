"""FedPM: trains which random weights to keep; the weights themselves never change.

Isik et al., "Sparse Random Networks for Communication-Efficient Federated Learning",
ICLR 2023, https://arxiv.org/abs/2209.15328. The constants, the estimator and the merge
are those of the authors' code. Masks from Bernoulli draws and signed constants: Zhou et
al., "Deconstructing Lottery Tickets", NeurIPS 2019, https://arxiv.org/abs/1905.01067.
"""

import math
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import Array, Key, PyTree, SparseModel
from sparsefl_jax.models import Model, adapters
from sparsefl_jax.sparsity import masks, trees
from sparsefl_jax.training import local, means, screening
from sparsefl_jax.wire.packets import Initial, Packet, pack_initial


class Server(NamedTuple):
    """Weights that never change, and a score for each of them."""

    frozen: PyTree  # float32: c or -c; normalisation (1, 0)
    scores: PyTree  # float32, logits of the probabilities; None for normalisation
    stats: PyTree  # float32


KEPT = "a client keeps the weights that it received before its first round"


@method
def fedpm(
    model: Model,
    optimizer: Optimizer,
    *,
    weights: Literal["constants", "initial"] = "constants",
    epsilon: Annotated[float, "(0, 0.5)"] = 0.01,
    keep_optimizer: bool = True,
    initial: Initial = "sent",
) -> Algorithm:
    """FedPM: clients train the scores s of a mask m ~ Bernoulli(sigmoid(s)).

    Every weight and bias of a layer with a kernel is +-c, c = e / sqrt(fan-in), and has
    a score that starts at N(0, 1); normalisation is frozen at scale 1 and bias 0. Every
    forward pass draws its own mask. The mask of an earlier stage is not used. The
    metric `unanimous` is the share of scores on which the cohort's masks agree.

    Down: the scores, float32. Up: one mask drawn from the trained scores, entropy-coded
    as a whole. Both: the normalisation statistics. Constant weights follow from a seed
    that all share and are not charged. The server averages masks and statistics with
    equal weights; an entry of a mask counts as epsilon or 1 - epsilon. The new scores
    are the logits of this mean, at most log(1 / epsilon - 1) in size, and do not depend
    on earlier rounds. The deployed model is one draw of the mask.

    The ledger's FLOPs: the forward pass and the gradient of the inputs at the drawn
    masks, the gradient of the weights dense, because every score needs it. Drawing is
    not counted.

    Args:
      model: the network and its loss.
      optimizer: the clients', of the scores, as `local.make_optimizer` returns it.
      weights: 'constants', as above, or 'initial', the weights of the initial model; a
        weight of 0 counts as dropped.
      epsilon: the value of a mask's zero in the mean.
      keep_optimizer: clients keep their optimizer's state between rounds.
      initial: how a client gets weights that are 'initial', before its first round:
        'sent', 32 bits each, or 'seed', see `packets.pack_initial`. Constants follow
        from a seed and are not charged.

    Raises:
      ValueError: an argument is out of range, or the model has adapters and `weights`
        is 'initial'; by `init`, a leaf is neither kernel, bias nor scale.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = fedpm(model, optimizer, keep_optimizer=False)
    """
    loss_fn = local.objective(model)
    given = weights == "initial"
    if given:
        adapters.refuse(model, "with weights='initial' all masks leave B at 0")

    def init(key, start: SparseModel):
        weight_key, score_key = jax.random.split(key)
        signed = signed_constants(weight_key, start.params)  # checks leaves
        frozen = start.params if given else signed
        scored, _ = split_scored(frozen)
        scores = optax.tree.random_like(score_key, scored, jax.random.normal)
        return Server(frozen, scores, start.stats)

    def send_once(server):
        return pack_initial({"frozen": server.frozen}, initial) if given else {}

    def init_client(key, received, info):
        scores, _ = split_scored(model.shapes()[0])
        return local.init_optimizer(optimizer, scores, keep_optimizer)

    def broadcast(key, ctx, server):
        return {
            "frozen": Packet(server.frozen, bits=0, assumed=KEPT if given else ""),
            "scores": Packet(server.scores),
            "stats": Packet(server.stats),
        }

    def update(key, ctx, downlink, client, batches):
        frozen, scores = downlink["frozen"].values, downlink["scores"].values
        train_key, mask_key = jax.random.split(key)
        start = SparseModel(scores, None, downlink["stats"].values)
        none = {"work": local.dense_work(jnp.float32(0), frozen)}
        tx = optimizer(ctx.round)

        def masked_loss(key, scores, stats, x, y, weight):
            draw_key, key = jax.random.split(key)
            params = draw(draw_key, scores, frozen)
            loss, (stats, sums) = loss_fn(key, params, stats, x, y, weight)
            done = screening.work(sums["count"], mask_of(params))
            return loss, (stats, sums | {"work": done})

        kept = {"opt_state": client, "sums": none}
        trained = local.train(train_key, masked_loss, tx, start, batches, **kept)
        drawn = draw(mask_key, trained.model.params, frozen)
        mask, _ = split_scored(mask_of(drawn))
        uplink = {"mask": Packet(mask, bits=1, index="entropy")}
        uplink["stats"] = Packet(trained.model.stats)
        return uplink, trained.opt_state, trained.metrics

    def contribute(ctx, uplink):
        return means.weighted_sum({n: packet.values for n, packet in uplink.items()})

    def aggregate(key, ctx, server, total):
        mean = means.weighted_mean(total)

        def score(votes):
            return jax.scipy.special.logit(epsilon + (1 - 2 * epsilon) * votes)

        scores = jax.tree.map(score, mean["mask"])
        votes, _ = ravel_pytree(mean["mask"])
        unanimous = jnp.mean((votes == 0) | (votes == 1), dtype=jnp.float32)
        new = means.if_heard(ctx, (scores, mean["stats"]), server[1:])
        return Server(server.frozen, *new), {"unanimous": unanimous}

    def deploy(key, server):
        params = draw(key, server.scores, server.frozen)
        return {"global": SparseModel(params, mask_of(params), server.stats)}

    steps = init, broadcast, update, contribute, aggregate, deploy, init_client
    return Algorithm(*steps, send_once=send_once)


def has_score(params: PyTree) -> PyTree:
    """Selects the leaves that have scores: all of each layer that has a kernel.

    Args:
      params: the parameters, or a tree like them.

    Returns:
      A tree of Python bools.

    Example:
      >>> has_score({'fc': {'kernel': 1, 'bias': 2}, 'bn': {'scale': 3, 'bias': 4}})
      {'bn': {'bias': False, 'scale': False}, 'fc': {'bias': True, 'kernel': True}}
    """
    paths = trees.leaf_paths(params)
    return trees.map_by_path(lambda path, _: _kernel(path) in paths, params)


def split_scored(params: PyTree) -> tuple[PyTree, PyTree]:
    """Splits a tree into the leaves that have scores and the others.

    Example:
      >>> split_scored({'fc': {'kernel': 1, 'bias': 2}, 'bn': {'scale': 3}})[1]['bn']
      {'scale': 3}
    """
    return trees.split(params, has_score(params))


def signed_constants(key: Key, params: PyTree) -> PyTree:
    """Draws weights that are never trained: +c or -c, where c = e / sqrt(fan-in).

    Args:
      key: draws the signs.
      params: a tree of arrays or shapes. A kernel's last axis holds its outputs, and a
        bias has the fan-in of its kernel. In other layers, the leaves named `scale`
        become 1, and those named `bias` 0.

    Returns:
      A float32 tree like `params`.

    Raises:
      ValueError: a leaf is none of these, or there is no kernel.

    Example:
      >>> w = signed_constants(jax.random.key(0), {'kernel': jnp.zeros((4, 1))})
      >>> jnp.abs(w['kernel']).ravel().tolist()  # e / 2
      [1.3591, 1.3591, 1.3591, 1.3591]
    """
    leaves = trees.by_path(params)
    if not any(jax.tree.leaves(has_score(params))):
        raise UserError(f"no kernel among the leaves {[*leaves]}")
    keys, out = jax.random.split(key, len(leaves)), []
    for (path, leaf), sign_key in zip(leaves.items(), keys, strict=True):
        name = path.rpartition("/")[2]
        if (kernel := leaves.get(_kernel(path))) is not None:
            c = jnp.float32(math.e / math.sqrt(math.prod(kernel.shape[:-1])))
            sign = jax.random.bernoulli(sign_key, shape=leaf.shape)
            out.append(jnp.where(sign, c, -c))
        elif name in ("scale", "bias"):
            out.append(jnp.full(leaf.shape, name == "scale", jnp.float32))
        else:
            raise UserError(f"leaf {path!r}, expected a kernel, bias or scale")
    return jax.tree.unflatten(jax.tree.structure(params), out)


def _kernel(path: str) -> str:
    """Returns the path of the kernel of a leaf's layer."""
    return path[: path.rfind("/") + 1] + "kernel"


@jax.custom_vjp
def keep(uniform: Array, scores: Array, weights: Array) -> Array:
    """Keeps the weights where uniform < p = sigmoid(scores), the mask m; 0 elsewhere.

    As in the authors' code, the gradient passes the draw times p, and then the sigmoid:
    dL/ds = dL/dm p p (1 - p), with dL/dm = dL/dw weights also where m is 0.

    Args:
      uniform: float32 in (0, 1); has no gradient.
      scores: float32.
      weights: float32; has no gradient.

    Returns:
      float32, the common shape of all.

    Example:
      >>> grad = jax.grad(keep, argnums=1)
      >>> float(grad(jnp.float32(0.9), jnp.float32(0.0), jnp.float32(2.0)))  # p = 1 / 2
      0.25
    """
    kept = uniform < jax.nn.sigmoid(scores)
    return jnp.where(kept, weights, jnp.zeros_like(weights))


def _keep_backward(residual, g):
    scores, weights = residual
    p = jax.nn.sigmoid(scores)
    return None, g * weights * p * p * (1 - p), None


keep.defvjp(lambda *given: (keep(*given), given[1:]), _keep_backward)


def draw(key: Key, scores: PyTree, frozen: PyTree) -> PyTree:
    """Draws a mask, and returns the parameters that it keeps.

    Args:
      key: a typed key.
      scores: float32 tree, None where a leaf has none.
      frozen: all parameters, as `signed_constants` returns them.

    Returns:
      A tree like `frozen`, differentiable in `scores`.

    Example:
      >>> frozen, scores = {'kernel': jnp.ones(2)}, {'kernel': jnp.array([-99., 99.])}
      >>> draw(jax.random.key(0), scores, frozen)['kernel'].tolist()
      [0.0, 1.0]
    """
    weights, rest = split_scored(frozen)
    uniform = optax.tree.random_like(key, weights, _uniform)
    kept = jax.tree.map(keep, uniform, scores, weights)
    return trees.merge(kept, rest)


def mask_of(params: PyTree) -> PyTree:
    """Returns the mask of drawn parameters: False where a leaf with scores is 0.

    Example:
      >>> mask_of({'kernel': jnp.array([0.0, 2.0])})['kernel'].tolist()
      [False, True]
    """
    return masks.support(params, has_score(params))


def _uniform(key: Key, shape: Any, dtype: Any) -> Array:
    """Draws from (0, 1) on a grid of 2^-16, because drawing takes much of a step."""
    drawn = jax.random.bits(key, shape, jnp.uint16).astype(dtype)
    return (drawn + 0.5) / 65536
