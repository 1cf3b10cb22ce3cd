"""FIARSE: each client trains as many of the largest weights as it can hold.

Wu et al., "FIARSE: Model-Heterogeneous Federated Learning via Importance-Aware Submodel
Extraction", NeurIPS 2024, https://arxiv.org/abs/2407.19389.
"""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from sparsefl_jax.algorithms import masked
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.types import Array, Positive, PyTree, Share, SparseModel
from sparsefl_jax.models.base import Model
from sparsefl_jax.models.layers import is_static
from sparsefl_jax.sparsity import layer_densities, masks, top_k, trees
from sparsefl_jax.training import local, means
from sparsefl_jax.wire.packets import Packet, pack_down, pack_up, unpack_model


@method
def fiarse(
    model: Model,
    optimizer: Optimizer,
    *,
    gradient: Literal["biased", "masked"] = "biased",
    sizes: tuple[Share, ...] = (),
    prunable: masks.Globs = masks.KERNELS,
    index: str = "packed",
    server_rate: Positive = 1.0,
) -> Algorithm:
    """FIARSE: a client of budget p holds the int(p n) largest of n weights.

    They are the largest of all layers together in the server's dense model x, and the
    smallest of them is the client's threshold, 0 at p = 1. The client computes with the
    weights that reach the threshold, see `above`; the others do not change during its
    training. An entry moves by the mean change of the clients that held it, all with
    the same weight, and stays as it is if none did.

    Down: the weights that the client holds, with their positions in every round. Up:
    the same weights, without positions. Both: the other leaves and running statistics,
    float32; the paper's networks, `norm='static'`, have none. The work is that of what
    the client holds, an upper bound, because weights that fall below the threshold have
    no gradient. Personal models are the server's model cut to the client's size.

    The method is defined for plain SGD: momentum or weight decay would also move the
    weights below the threshold. Budgets of up to six decimals are counted exactly;
    others, such as 1/3, by a float32 product, see `layer_densities.count_of`.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it.
      gradient: 'biased' for the paper's gradient, which passes through the mask too;
        'masked' for that of the weights alone, as in the released code, whose mask has
        no gradient.
      sizes: shares in (0, 1]; the model is deployed at these sizes too.
      prunable: globs of the leaves of which clients hold parts; the released code adds
        the classifier's bias.
      index: how positions are written, see `packets.Packet`; 'bitmap' costs a bit per
        weight for a client of budget 1 too, 'packed' a few bits.
      server_rate: the server's learning rate.

    Raises:
      ValueError: an argument is out of range, or a glob matches no leaf.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = fiarse(model, optimizer, sizes=(0.25, 0.5))
    """
    select = masks.prunable(model.macs, prunable)

    def cut(server, size):
        importance = jax.tree.map(jnp.abs, server.params)
        number = int(trees.layer_sizes(server.params, select).sum())
        count = layer_densities.count_of(size, number)
        mask = top_k.largest_overall(importance, count, select)
        return masks.prune(server, mask)

    def init(key, start):
        return masks.dense(start.params, start.stats)

    def broadcast(key, ctx, server):
        part = cut(server, ctx.client.budget)
        static, running = trees.split(part.stats, is_static(part.stats))
        part = part._replace(stats=running)
        message = pack_down(ctx, part, ctx.round, select, index=index)
        # Every batch computes its own, so a client needs only their shapes.
        return message | {"static": Packet(static, bits=0)}

    def update(key, ctx, downlink, client, batches):
        received, static = unpack_model(downlink), downlink["static"].values
        threshold = _smallest_magnitude(received, select)
        threshold = jnp.where(ctx.client.budget < 1, threshold, jnp.float32(0))

        def apply(params, *args, **kwargs):
            params = jax.tree.map(
                lambda w, s: above(w, threshold, gradient) if s else w, params, select
            )
            return model.apply(params, *args, **kwargs)

        loss_fn, tx = local.objective(model._replace(apply=apply)), optimizer(ctx.round)
        start = received._replace(stats=trees.merge(received.stats, static))
        trained = local.train(key, loss_fn, tx, start, batches)
        _, running = trees.split(trained.model.stats, is_static(trained.model.stats))
        new = trained.model._replace(stats=running)
        uplink = pack_up(new, received.mask, select, index=index)
        return uplink, client, trained.metrics

    def step(old, mean):
        return old + server_rate * (mean - old)

    def aggregate(key, ctx, server, total):
        params = means.covered_mean(total["covered"], server.params)
        if server_rate != 1:  # static branch
            params = jax.tree.map(step, server.params, params)
        static, running = trees.split(server.stats, is_static(server.stats))
        running = means.weighted_mean(total["stats"], running)
        return SparseModel(params, server.mask, trees.merge(running, static)), {}

    def deploy(key, server):
        smaller = {f"d{size}": cut(server, jnp.float32(size)) for size in sizes}
        return {"global": server} | smaller

    def personalize(key, server, client, info):
        return {"personal": cut(server, info.budget)}

    contribute = partial(masked.covered_summand, weight=means.WEIGHTINGS["uniform"])
    required = (init, broadcast, update, contribute, aggregate, deploy)
    return Algorithm(*required, personalize=personalize)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def above(w: Array, threshold: Array, gradient: str = "biased") -> Array:
    """Returns the weights whose magnitude reaches a threshold, and 0 for the others.

    The biased gradient takes 2 t / (|w| + t)^2 for the slope of the step at t, which is
    that of (|w| - t) / (|w| + t). With g the gradient of the result, that of w is
    g (1 + 2 t |w| / (|w| + t)^2) where |w| >= t, and 0 elsewhere; the threshold has
    none.

    Args:
      w: float32, any shape.
      threshold: t >= 0, scalar float32.
      gradient: 'biased', or 'masked' for g where |w| >= t.

    Returns:
      An array like `w`.

    Example:
      >>> w, t = jnp.array([0.5, -1.0, 3.0]), jnp.float32(1.0)
      >>> above(w, t).tolist()
      [0.0, -1.0, 3.0]
      >>> jax.grad(lambda w: above(w, t).sum())(w).tolist()
      [0.0, 1.5, 1.375]
    """
    return jnp.where(jnp.abs(w) >= threshold, w, jnp.zeros_like(w))


def _above_forward(w, threshold, gradient):
    return above(w, threshold, gradient), (w, threshold)


def _above_backward(gradient, residual, g):
    w, t = residual
    size = jnp.abs(w)
    factor = jnp.ones_like(w)
    if gradient == "biased":  # static branch
        total = jnp.where(t > 0, size + t, 1)
        factor = 1 + 2 * t * size / jnp.square(total)
    return jnp.where(size >= t, g * factor, jnp.zeros_like(g)), None


above.defvjp(_above_forward, _above_backward)


def _smallest_magnitude(model: SparseModel, select: PyTree) -> Array:
    """Returns the smallest |w| of the selected leaves' entries within the mask."""
    pairs = zip(*(trees.layers(t, select) for t in model[:2]), strict=True)
    sizes = (jnp.where(mask, jnp.abs(w), jnp.inf) for w, mask in pairs)
    return jnp.min(jnp.stack([jnp.min(size) for size in sizes]))
