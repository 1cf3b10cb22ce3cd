"""FedLUAR: the server moves some layers by their last update instead of a new one.

Kim, Kang and Lee, "Layer-wise Update Aggregation with Recycling for
Communication-Efficient Federated Learning", NeurIPS 2025,
https://arxiv.org/abs/2503.11146. `docs/methods/fedluar.md` says what the released code
does otherwise.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from sparsefl_jax.algorithms.fedavg import fedavg, keep_model, server_step
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.check import check, integer
from sparsefl_jax.core.types import Array, PyTree
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import masks, top_k, trees
from sparsefl_jax.training import means
from sparsefl_jax.wire.packets import Packet, pack_slice


class Server(NamedTuple):
    """The global model, the last update of each layer, and which layers it recycles."""

    params: PyTree  # float32
    stats: PyTree  # float32
    opt_state: PyTree
    last: list[Array]  # [L] float32 like the layers: the mean update collected last
    score: Array  # [L] float32: the norm of that update over the norm of the weights
    recycled: Array  # [L] bool: the layers that this round does not collect
    age: Array  # [L] int32: rounds since the layer was collected


@method
def fedluar(
    model: Model,
    optimizer: Optimizer,
    *,
    layers: int = 1,
    select: Literal["score", "uniform", "cyclic"] = "score",
    fill: Literal["recycle", "freeze"] = "recycle",
    server_optimizer: optax.GradientTransformation | None = None,
    weighting: means.Weighting = "examples",
    prunable: masks.Globs = masks.KERNELS,
    keep_optimizer: bool = False,
) -> Algorithm:
    """FedAvg in which some layers are not collected but repeat their last update.

    Layer l moves by the mean update u_l. In round t the clients send their updates of
    all layers but those in R_t, whose u_l stays what it was. R_0 is empty, and R_{t+1}
    has `layers` of the layers, drawn one after another without replacement with
    probability proportional to 1 / s_l. The score s_l = |u_l| / (|w_l| + 1e-6) is of
    the round in which u_l was collected, with the weights before that round's step. A
    layer that did not move at all is recycled almost surely. u_l is not rescaled when
    the clients' learning rate falls.

    Down: the model, float32, and a bit for each layer. Up: the change of what is not
    recycled, float32, without positions. Both: normalisation statistics, float32.
    Training is dense: what clients train of a recycled layer is thrown away.

    The metric `recycled` is the share of the layers' entries that was not collected,
    and `staleness` the rounds since a layer was collected, averaged over layers.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it.
      layers: number of layers that are recycled in a round, from 0, which is FedAvg, to
        one less than there are.
      select: 'score' as above, 'uniform' for equal probabilities, or 'cyclic' for all
        in turn.
      fill: 'recycle', or 'freeze' if a layer that is not collected stays as it is.
      server_optimizer: an optax optimizer that takes the negated update for a gradient,
        that of recycled layers included; None adds the update.
      weighting: a client's weight in the mean, see `means.WEIGHTINGS`; the released
        code has 'uniform'.
      prunable: globs of the leaves that are layers; the others are always collected.
      keep_optimizer: clients keep their optimizer's state between rounds.

    Raises:
      ValueError: an argument is out of range, or a glob matches no leaf.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = fedluar(model, optimizer, layers=1)
    """
    server_tx = server_optimizer or optax.sgd(1.0)
    shared = {"keep_optimizer": keep_optimizer, "weighting": weighting}
    averaging = fedavg(model, optimizer, server_optimizer=server_tx, **shared)
    kernels = masks.prunable(model.macs, prunable)
    count = sum(jax.tree.leaves(kernels))
    check("layers", layers, integer(0, count - 1))

    def init(key, start):
        last = [jnp.zeros_like(w) for w in trees.layers(start.params, kernels)]
        kinds = {"score": jnp.float32, "recycled": bool, "age": jnp.int32}
        zeros = {name: jnp.zeros(count, kind) for name, kind in kinds.items()}
        return Server(*averaging.init(key, start), last=last, **zeros)

    def broadcast(key, ctx, server):
        recycled = {"recycled": Packet(server.recycled, bits=1)}
        return averaging.broadcast(key, ctx, server) | recycled

    def update(key, ctx, downlink, client, batches):
        uplink, client, metrics = averaging.update(key, ctx, downlink, client, batches)
        delta, recycled = uplink["delta"].values, downlink["recycled"].values
        pairs = zip(trees.layers(delta, kernels), recycled, strict=True)
        sent = masks.total(delta, kernels, [jnp.full(x.shape, ~r) for x, r in pairs])
        return uplink | {"delta": pack_slice(delta, sent)}, client, metrics

    def aggregate(key, ctx, server, total):
        mean = means.weighted_mean(total, keep_model(server, total))
        recycled, new = server.recycled, trees.layers(mean["delta"], kernels)
        last = jax.tree.map(jnp.where, [*recycled], server.last, new)
        pairs = zip(last, trees.layers(server.params, kernels), strict=True)
        norm = optax.tree.norm
        score = jnp.stack([norm(u) / (norm(w) + 1e-6) for u, w in pairs])
        score = jnp.where(recycled, server.score, score)
        delta = mean["delta"]  # 0 in recycled layers, of which nothing was sent
        if fill == "recycle":  # static branch
            delta = trees.replace_layers(delta, kernels, last)
        step, opt_state = server_step(ctx, server_tx, server, delta)
        if fill == "freeze":  # static branch: neither by momentum nor by private noise
            moves = optax.tree.zeros_like(new), trees.layers(step, kernels)
            still = jax.tree.map(jnp.where, [*recycled], *moves)
            step = trees.replace_layers(step, kernels, still)
        params = optax.apply_updates(server.params, step)
        age = jnp.where(recycled, server.age + 1, 0)
        after = draw(key, ctx.round, score)
        sizes = trees.layer_sizes(params, kernels)
        share = jnp.where(recycled, np.float32(sizes / sizes.sum()), np.float32(0))
        stale = jnp.mean(age, dtype=jnp.float32)
        logged = {"recycled": jnp.sum(share), "staleness": stale}
        new = Server(params, mean["stats"], opt_state, last, score, after, age)
        return means.if_heard(ctx, new, server), logged

    def draw(key, round, score):
        if select == "cyclic":  # static branch
            first = layers * (round % count)
            return (jnp.arange(count, dtype=jnp.int32) - first) % count < layers
        if select == "uniform":  # static branch
            score = jnp.ones_like(score)
        # The largest of log p + Gumbel noise are a draw by p without replacement.
        chance = -jnp.log(jnp.maximum(score, 1e-12))
        noise = jax.random.gumbel(key, (count,), jnp.float32)
        return top_k.top_k(chance + noise, layers)

    return averaging.replace(init, broadcast, update, aggregate)
