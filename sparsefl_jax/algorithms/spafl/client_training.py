"""Trains a client's weights together with the thresholds of its filters.

Kim et al., "SpaFL", NeurIPS 2024, https://arxiv.org/abs/2406.00431, section 3.3.1.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from sparsefl_jax.algorithms.spafl.variants import VARIANTS, Variant
from sparsefl_jax.core.algorithm import Optimizer
from sparsefl_jax.core.types import (
    Array,
    Batches,
    ClientInfo,
    Context,
    Key,
    PyTree,
    SparseModel,
)
from sparsefl_jax.core.validate import in_range, one_of
from sparsefl_jax.sparsity import masks, straight_through, trees
from sparsefl_jax.training import local


class Trained(NamedTuple):
    """The trained values: the optimizer moves them, clipping takes their norm."""

    params: PyTree  # float32
    thresholds: dict[str, Array]  # [O] float32 by path of the kernel


class Client(NamedTuple):
    """The state that a client keeps from round to round."""

    trained: Trained
    stats: PyTree  # float32
    opt_state: PyTree  # EmptyState where the optimizer starts afresh every round


class Options(NamedTuple):
    """How a client trains: arguments of `spafl`, the variant looked up."""

    alpha: float
    variant: Variant
    clamp: bool
    thresholds_only: bool
    keep_optimizer: bool


def make_options(
    alpha: float, variant: str, clamp: bool, thresholds_only: bool, keep_optimizer: bool
) -> Options:
    """Returns the options; the arguments are those of `spafl`.

    Raises:
      ValueError: alpha is negative or not finite, or the variant unknown.
    """
    in_range("alpha", alpha, "[0, inf)")
    one_of("variant", variant, VARIANTS)
    return Options(alpha, VARIANTS[variant], clamp, thresholds_only, keep_optimizer)


def start(
    model: SparseModel, select: PyTree, optimizer: Optimizer, options: Options
) -> Client:
    """Returns a client that has not trained: the model's weights, thresholds 0."""
    trained = Trained(model.params, straight_through.zeros(model.params, select))
    moving = lambda round: _optimizer(optimizer(round), options)  # noqa: E731
    opt_state = local.init_optimizer(moving, trained, options.keep_optimizer)
    return Client(trained, model.stats, opt_state)


def _optimizer(tx: optax.GradientTransformation, options: Options):
    """Returns the optimizer, followed by the reset of dead layers.

    A layer is dead if the forward pass before the step found it so. With 'same' that
    pass used thresholds 0, from which the step starts; 'previous' discards the step.
    """

    def reset(updates: Trained, old: Trained):
        kernels = straight_through.kernels(*old)
        moved = {}
        for path, step in updates.thresholds.items():
            threshold = old.thresholds[path]
            to = step - threshold if options.variant.reset == "same" else -threshold
            dead = straight_through.is_dead(kernels[path], threshold)
            moved[path] = jnp.where(dead, to, step)
        params = updates.params
        if options.thresholds_only:  # weight decay would move them
            params = jax.tree.map(jnp.zeros_like, params)
        return Trained(params, moved)

    return optax.chain(tx, optax.stateless(reset))


def revived(client: Client) -> Client:
    """Returns a client whose dead layers have thresholds 0.

    The official code evaluates every client after each round, which resets its dead
    layers. So no layer is still dead from an earlier round when training begins.
    """
    thresholds = straight_through.revived(*client.trained)
    return client._replace(trained=client.trained._replace(thresholds=thresholds))


def train(
    key: Key,
    ctx: Context,
    client: Client,
    batches: Batches,
    loss_fn: Callable,
    optimizer: Optimizer,
    options: Options,
) -> tuple[Client, dict]:
    """Trains one client's weights and thresholds, eqs. (3) to (6).

    Returns:
      The trained client, and the metrics of an `update`. Work and density are those of
      the mask at the end of training, as the paper counts them.
    """
    loss = regularised(loss_fn, ctx.round, options)
    tx = _optimizer(optimizer(ctx.round), options)
    project = _clamped if options.clamp else None
    before = SparseModel(client.trained, None, client.stats)
    kept = {"opt_state": client.opt_state, "project": project}
    after = local.train(key, loss, tx, before, batches, **kept)
    trained, _, stats = after.model
    mask = straight_through.filter_masks(*trained)
    # Thresholds take five operations per weight and step: |w| and its sum, and the
    # two gradients through the mask.
    size = sum(kernel.size for kernel in straight_through.kernels(*trained).values())
    steps = jnp.sum(jnp.any(batches.weight > 0, axis=-1), dtype=jnp.float32)
    count, extra = after.metrics["count"], steps * (5.0 * size)
    return Client(trained, stats, after.opt_state), after.metrics | {
        "work": local.work(count, mask, extra=extra),
        "density": masks.density(mask, masks.everything(mask)),
    }


def regularised(loss_fn: Callable, round: Array, options: Options) -> Callable:
    """Returns the loss at pruned weights plus alpha sum_i exp(-threshold_i), eq. (5).

    With `warmup`, alpha is multiplied by sigmoid(10 round - 5).
    """
    alpha = jnp.float32(options.alpha)
    if options.variant.warmup:
        alpha = alpha * jax.nn.sigmoid(10.0 * round - 5.0)

    def loss(key, trained: Trained, *rest):
        params, thresholds = trained
        if options.thresholds_only:
            params = jax.lax.stop_gradient(params)
        if options.variant.reset == "same":
            thresholds = straight_through.revived(params, thresholds)
        pruned = straight_through.prune(params, thresholds, options.variant.ste)
        value, others = loss_fn(key, pruned, *rest)
        penalty = sum(jnp.sum(jnp.exp(-t)) for t in thresholds.values())
        return value + alpha * penalty, others

    return loss


def _clamped(trained: Trained) -> Trained:
    """Returns kernels clipped to [-1, 1] and thresholds to [0, 1], section 3.1."""
    paths = trees.leaf_paths(trained.params)
    leaves, treedef = jax.tree.flatten(trained.params)
    params = [
        jnp.clip(v, -1.0, 1.0) if path in trained.thresholds else v
        for path, v in zip(paths, leaves, strict=True)
    ]
    thresholds = jax.tree.map(lambda t: jnp.clip(t, 0.0, 1.0), trained.thresholds)
    return Trained(treedef.unflatten(params), thresholds)


def personalize(
    key: Key, server: PyTree, client: Client, info: ClientInfo
) -> dict[str, SparseModel]:
    """Returns a client's personal model: its weights where its filters are alive."""
    params, thresholds = client.trained
    mask = straight_through.filter_masks(params, thresholds)
    model = SparseModel(masks.apply(params, mask), mask, client.stats)
    return {"personal": model}
