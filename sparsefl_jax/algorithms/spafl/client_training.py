"""Trains a client's weights together with the thresholds of its filters.

Kim et al., "SpaFL", NeurIPS 2024, https://arxiv.org/abs/2406.00431, section 3.3.1.
Where the paper and the released code differ, `VARIANTS` has both. The code,
news-vt/SpaFL_NeruIPS_2024, has one folder for each data set, and the folders differ
from each other too.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from sparsefl_jax.core.algorithm import Optimizer
from sparsefl_jax.core.types import Array, PyTree, SparseModel
from sparsefl_jax.models import adapters
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import masks, straight_through, trees
from sparsefl_jax.training import local


class Variant(NamedTuple):
    """How thresholds are trained and how eq. (13) moves weights."""

    divisor: str  # n of eq. (13): the 'inputs' of a filter, or its 'kernel' area
    ste: str  # the estimator of `straight_through.unit_step`
    reset: str  # a dead layer is found by the 'same' forward pass or the 'previous' one
    warmup: bool  # alpha is multiplied by sigmoid(10 round - 5)


VariantName = Literal[
    "paper", "release_fashion_mnist", "release_cifar10", "release_cifar100"
]
VARIANTS = {
    "paper": Variant("inputs", "identity", "same", False),
    "release_fashion_mnist": Variant("kernel", "identity", "previous", True),
    "release_cifar10": Variant("kernel", "window", "previous", False),
    "release_cifar100": Variant("kernel", "window", "previous", True),
}


class Trained(NamedTuple):
    """The trained values: the optimizer moves them, clipping takes their norm."""

    params: PyTree  # float32
    thresholds: dict[str, Array]  # [O] float32 by path of the kernel


class Client(NamedTuple):
    """The state that a client keeps from round to round."""

    trained: Trained
    stats: PyTree  # float32
    opt_state: PyTree  # EmptyState where the optimizer starts afresh every round


def make_training(
    model: Model,
    optimizer: Optimizer,
    alpha: float,
    prunable: masks.Globs,
    variant: VariantName,
    clamp: bool,
    keep_optimizer: bool,
    thresholds_only: bool = False,
) -> tuple[Callable, Callable]:
    """Returns how a client begins and how it trains, by the arguments of `spafl`.

    Returns:
      `begin(params, stats) -> Client`, a client that has not trained: these weights,
      thresholds 0; and `train(key, round, client, batches) -> (client,
      metrics)`, eqs. (3) to (6). Work and density are those of the mask at the end of
      training, as the paper counts them.

    Raises:
      ValueError: a glob matches no kernel, or the model has adapters.
    """
    loss_fn, released = local.objective(model), VARIANTS[variant]
    adapters.refuse(model, "filters of B, which is 0, are dead and have no gradient")
    select = masks.prunable(model.macs, prunable)

    def reset(updates, old):
        """Resets dead layers after the optimizer's step.

        A layer is dead if the forward pass before the step found it so. With 'same'
        that pass used thresholds 0, from which the step starts; 'previous' discards the
        step.
        """
        leaves = trees.by_path(old.params)
        moved = {}
        for path, step in updates.thresholds.items():
            threshold = old.thresholds[path]
            to = step - threshold if released.reset == "same" else -threshold
            dead = straight_through.is_dead(leaves[path], threshold)
            moved[path] = jnp.where(dead, to, step)
        params = updates.params
        if thresholds_only:  # weight decay would move them
            params = jax.tree.map(jnp.zeros_like, params)
        return Trained(params, moved)

    def moving(round):
        return optax.chain(optimizer(round), optax.stateless(reset))

    def begin(params, stats):
        trained = Trained(params, straight_through.zeros(params, select))
        opt_state = local.init_optimizer(moving, trained, keep_optimizer)
        return Client(trained, stats, opt_state)

    def regularised(round):
        """Returns the loss at pruned weights plus alpha sum_i exp(-threshold_i)."""
        strength = jnp.float32(alpha)
        if released.warmup:
            strength = strength * jax.nn.sigmoid(10.0 * round - 5.0)

        def loss(key, trained: Trained, *rest):
            params, thresholds = trained
            if thresholds_only:
                params = jax.lax.stop_gradient(params)
            if released.reset == "same":
                thresholds = straight_through.revived(params, thresholds)
            pruned = straight_through.prune(params, thresholds, released.ste)
            value, others = loss_fn(key, pruned, *rest)
            penalty = sum(jnp.sum(jnp.exp(-t)) for t in thresholds.values())
            return value + strength * penalty, others

        return loss

    def train(key, round, client, batches):
        before = SparseModel(client.trained, None, client.stats)
        kept = {"opt_state": client.opt_state, "project": _clamp if clamp else None}
        loss, tx = regularised(round), moving(round)
        after = local.train(key, loss, tx, before, batches, **kept)
        trained, _, stats = after.model
        mask = straight_through.filter_masks(*trained)
        # Thresholds take five operations per weight and step: |w| and its sum, and the
        # two gradients through the mask.
        size = int(trees.layer_sizes(trained.params, select).sum())
        steps = jnp.sum(jnp.any(batches.weight > 0, axis=-1), dtype=jnp.float32)
        count, extra = after.metrics["count"], steps * (5.0 * size)
        return Client(trained, stats, after.opt_state), after.metrics | {
            "work": local.work(count, mask, extra=extra),
            "density": masks.density(mask, masks.everything(mask)),
        }

    return begin, train


def revived(client: Client) -> Client:
    """Returns a client whose dead layers have thresholds 0.

    The official code evaluates every client after each round, which resets its dead
    layers. So no layer is still dead from an earlier round when training begins.
    """
    thresholds = straight_through.revived(*client.trained)
    return client._replace(trained=client.trained._replace(thresholds=thresholds))


def _clamp(trained: Trained) -> Trained:
    """Returns kernels clipped to [-1, 1] and thresholds to [0, 1], section 3.1."""
    params = trees.map_by_path(
        lambda path, v: jnp.clip(v, -1.0, 1.0) if path in trained.thresholds else v,
        trained.params,
    )
    thresholds = jax.tree.map(lambda t: jnp.clip(t, 0.0, 1.0), trained.thresholds)
    return Trained(params, thresholds)


def personalize(key, server, client: Client, info) -> dict[str, SparseModel]:
    """Returns a client's personal model: its weights where its filters are alive."""
    params, thresholds = client.trained
    mask = straight_through.filter_masks(params, thresholds)
    model = SparseModel(masks.apply(params, mask), mask, client.stats)
    return {"personal": model}
