"""Complement Sparsification: the server prunes, the clients send what it pruned.

Jiang and Borcea, "Complement Sparsification: Low-Overhead Model Pruning for Federated
Learning", AAAI 2023, https://arxiv.org/abs/2303.06237. Messages are sparse in both
directions after a dense first round.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from sparsefl_jax.algorithms import masked
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.types import Array, Positive, PyTree, Share, SparseModel
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import masks, top_k, trees
from sparsefl_jax.training import local, means


class Server(NamedTuple):
    """The pruned model, whose mask is where it is not 0, and the unpruned one."""

    model: SparseModel
    unpruned: PyTree  # float32 like params: the last aggregate before it was pruned
    changed_at: Array  # shape=(), int32: first round whose broadcast carries the mask


@method
def complement(
    model: Model,
    optimizer: Optimizer,
    *,
    density: Share,
    aggregation_ratio: Positive = 1.5,
    index: str = "bitmap",
) -> Algorithm:
    """CS: clients train all weights and send the new values of those that were zero.

    Down: the weights that are not 0, a bit that says whether their positions are new,
    these if so, and statistics. Up: the trained values other than 0 at entries that the
    client received as 0, their positions, and statistics; until the server has pruned
    an aggregate, normally in round 0 alone, the whole model. Trained values of other
    entries are discarded. Each tensor is pruned separately, biases too, because the
    entries of a tensor that is not pruned would never change afterwards. The client's
    FLOPs are counted as dense, because its weights are dense after one step;
    `analysis.complement.complement_saving` is the paper's count.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it; it starts afresh
        in every round.
      density: 1 - p, the share of each tensor that the server keeps; at 1, every round
        is like the first.
      aggregation_ratio: eta', the factor of the clients' mean before it is added; the
        paper's theory needs a value between 1 and 1 / learning rate.
      index: how positions are written, see `packets.Packet`.

    Raises:
      ValueError: an argument is out of range.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = complement(model, optimizer, density=0.5)
    """
    loss_fn, everything = local.objective(model), masks.select_all(model.macs)

    def dense(mask):
        """Returns whether nothing was pruned yet: the mask is full until then."""
        full = jax.tree.reduce(jnp.logical_and, jax.tree.map(jnp.all, mask))
        return full | (density == 1)

    def init(key, start):
        whole = masks.dense(masks.apply(start.params, start.mask), start.stats)
        return Server(whole, whole.params, jnp.int32(0))

    def train(key, ctx, received, client, batches):
        tx = optimizer(ctx.round)
        first, start = dense(received.mask), received._replace(mask=None)
        trained = local.train(key, loss_fn, tx, start, batches)
        open_to = jax.tree.map(lambda m: first | ~m, received.mask)
        sent = jax.tree.map(lambda w, m: m & (w != 0), trained.model.params, open_to)
        metrics, new = trained.metrics | _densities(sent), trained.model
        return trained._replace(model=new._replace(mask=sent), metrics=metrics), client

    def aggregate(key, ctx, server, total):
        old, first = server.model, dense(server.model.mask)
        # The first round replaces the model; later rounds add to it.
        base = jax.tree.map(lambda w: jnp.where(first, 0.0, w), old.params)
        zeros, _ = means.zeros(total)
        mean, stats = means.weighted_mean(total, (zeros, old.stats))
        ratio = jnp.where(first, 1.0, aggregation_ratio)
        params = jax.tree.map(lambda b, m: b + ratio * m, base, mean)
        mask = jax.tree.map(lambda w: _kept(w, density), params)
        pruned = SparseModel(masks.apply(params, mask), mask, stats)
        return masked.move_if_heard(ctx, server, pruned, unpruned=params), {}

    def deploy(key, server):
        whole = masks.dense(server.unpruned, server.model.stats)
        return {"global": server.model, "unpruned": whole}

    method = masked.training_within(everything, index, train, optional=True)
    return method.replace(init, aggregate, deploy)


def _kept(w: Array, density: float) -> Array:
    """Returns where |w| reaches its (1 - density) quantile and w is not 0."""
    magnitude = jnp.abs(w)
    return (magnitude >= top_k.quantile(magnitude, 1 - density)) & (w != 0)


def _densities(sent: PyTree) -> dict[str, Array]:
    """Returns the density of a client's uplink, by kernel and in total: Tables 2, 3."""
    kernels = jax.tree.map(lambda m: m.ndim > 1, sent)
    paths, shares = trees.layer_paths(kernels), masks.layer_densities(sent, kernels)
    of_layers = {f"client_density/{path}": shares[i] for i, path in enumerate(paths)}
    return {"client_density": masks.density(sent, kernels)} | of_layers
