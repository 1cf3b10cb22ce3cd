"""PruneFL's stage 1: one client trains and prunes until the density settles."""

from collections.abc import Sequence
from functools import partial

import jax.numpy as jnp

from sparsefl_jax.algorithms import masked
from sparsefl_jax.algorithms.prunefl.rule import make_rule
from sparsefl_jax.algorithms.prunefl.search import prune
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.types import Count, Fraction, NonNegative, Share, SparseModel
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import masks
from sparsefl_jax.training import local
from sparsefl_jax.wire.messages import pack_up, unpack_model


@method
def prunefl_initial(
    model: Model,
    optimizer: Optimizer,
    *,
    num_batches: Count = 10,
    reconfigure_every: Count = 50,
    max_iterations: Count = 1000,
    start_accuracy: Fraction = 0.15,
    prune_rate: Fraction = 0.3,
    layer_time: tuple[float, ...] | None = None,
    constant_time: NonNegative = 0.0,
    max_density: Share = 1.0,
    prunable: Sequence[str] = masked.KERNELS,
    index: str = "bitmap",
) -> Algorithm:
    """PruneFL's initial pruning: one client trains and prunes within one round.

    The client trains on its first `num_batches` minibatches repeatedly; one pass over
    them is an iteration. From the first iteration with an accuracy of at least
    `start_accuracy`, and then every `reconfigure_every` iterations, it applies the rule
    of `rule.make_rule` to the squares of its gradients, summed over all steps since the
    last time. It ends after `max_iterations`, or when the density has changed by at
    most a tenth five times in a row.

    The next stage starts from the mask and the trained weights. Down and up: alive
    weights and their positions, dense leaves and statistics, float32. With several
    clients, the server takes the mean of the weights and the union of the masks. A
    reconfiguration is charged n log2(n + 1) FLOPs over the n prunable weights.

    Args:
      model: the network and its loss.
      optimizer: the client's, as `local.make_optimizer` returns it.
      num_batches: number of the client's minibatches that it uses; 20 samples each in
        the paper.
      reconfigure_every: iterations between reconfigurations.
      max_iterations: maximum number of iterations.
      start_accuracy: training accuracy on the minibatches that starts the pruning; 1.5
        / classes in the paper.
      prune_rate: share of a layer's alive weights that may be pruned at a time.
      layer_time, constant_time, prunable, index: as in `prunefl`.
      max_density: as in `prunefl`; 1 in the paper.

    Raises:
      ValueError: an argument is out of range, or `layer_time` is not as long as there
        are layers.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> for_62_classes = prunefl_initial(model, optimizer, start_accuracy=1.5 / 62)
    """
    loss_fn = local.objective(model)
    select = masks.prunable(model.macs, prunable)
    rule = make_rule(select, prune_rate, layer_time, constant_time, max_density)
    search = partial(
        prune,
        loss_fn=loss_fn,
        select=select,
        num_batches=num_batches,
        every=reconfigure_every,
        limit=max_iterations,
        start_accuracy=start_accuracy,
        reconfigure=rule,
    )

    # Its init, broadcast and deploy also serve a mask that changes.
    frozen = masked.spdst(model, optimizer, prunable=prunable, index=index)

    def update(key, ctx, downlink, client, batches):
        received = unpack_model(downlink)
        found = search(key, optimizer(ctx.round), received, batches)
        trained = SparseModel(found.state.params, found.mask, found.state.stats)
        metrics = {**found.state.sums, "work": found.work}
        metrics["iterations"] = found.iteration.astype(jnp.float32)
        uplink = pack_up(trained, received.mask, select, index=index)
        return uplink, client, metrics

    def aggregate(key, round, server, total):
        new = masked.mean_on_union(total)
        return masked.moved(round, server, new), {}

    return frozen._replace(
        update=update,
        contribute=masked.summand_with_mask,
        aggregate=aggregate,
        alive=None,
    )
