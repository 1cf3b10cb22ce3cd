"""A client that trains its weights and the thresholds of its filters together.

Kim et al., "SpaFL", NeurIPS 2024, https://arxiv.org/abs/2406.00431, section 3.3.1.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from sparsefl_jax.core.types import Array, PyTree, SparseModel
from sparsefl_jax.sparsity import masks, straight_through, trees
from sparsefl_jax.training import local


class Trained(NamedTuple):
    """What the optimizer moves, and what clipping takes the norm of."""

    params: PyTree  # float32
    thresholds: dict[str, Array]  # [O] float32 by path of the kernel


class Client(NamedTuple):
    """What stays with a client from round to round."""

    trained: Trained
    stats: PyTree  # float32
    opt_state: PyTree  # EmptyState where the optimizer starts anew every round


class Options(NamedTuple):
    """How thresholds are trained; the arguments of `spafl`."""

    alpha: float
    ste: str
    reset: str
    warmup: bool
    clamp: bool
    thresholds_only: bool
    keep_optimizer: bool


RESETS = ("same", "previous")


def check(options: Options) -> None:
    """Refuses options outside their range.

    Raises:
      ValueError: names the argument, its value and what is allowed.
    """
    if not 0 <= options.alpha < float("inf"):
        raise ValueError(f"alpha={options.alpha}, expected a finite number from 0")
    for name, allowed in (("ste", straight_through.ESTIMATORS), ("reset", RESETS)):
        value = getattr(options, name)
        if value not in allowed:
            raise ValueError(f"{name}={value!r}, expected one of {', '.join(allowed)}")


def start(model: SparseModel, select, optimizer, options: Options) -> Client:
    """A client that has not trained: the given weights, all thresholds 0."""
    trained = Trained(model.params, straight_through.zeros(model.params, select))
    moving = lambda round: _optimizer(optimizer(round), options)  # noqa: E731
    opt_state = local.init_optimizer(moving, trained, options.keep_optimizer)
    return Client(trained, model.stats, opt_state)


def _optimizer(tx: optax.GradientTransformation, options: Options):
    """The optimizer, and the reset of layers whose forward pass found them dead.

    'same' used 0 in that pass and the step starts there; 'previous' discards the step.
    """

    def reset(updates: Trained, old: Trained):
        kernels = straight_through.kernels(*old)
        moved = {}
        for path, step in updates.thresholds.items():
            threshold = old.thresholds[path]
            to = step - threshold if options.reset == "same" else -threshold
            dead = straight_through.is_dead(kernels[path], threshold)
            moved[path] = jnp.where(dead, to, step)
        params = updates.params
        if options.thresholds_only:  # a decay of the weights would move them
            params = jax.tree.map(jnp.zeros_like, params)
        return Trained(params, moved)

    return optax.chain(tx, optax.stateless(reset))


def revived(client: Client) -> Client:
    """A client whose dead layers have thresholds 0.

    So an evaluation leaves it in the official code, which evaluates all after a round;
    no `reset` finds a layer dead that died in an earlier round.
    """
    thresholds = straight_through.revived(*client.trained)
    return client._replace(trained=client.trained._replace(thresholds=thresholds))


def train(key, ctx, client: Client, batches, loss_fn, optimizer, options: Options):
    """One client's local training of weights and thresholds, eqs. (3) to (6).

    Returns:
      The client after it, and the metrics of an `update`; work and density are at the
      mask that training ended with, as the paper counts.
    """
    loss = regularised(loss_fn, ctx.round, options)
    tx = _optimizer(optimizer(ctx.round), options)
    project = _clamped if options.clamp else None
    before = SparseModel(client.trained, None, client.stats)
    kept = {"opt_state": client.opt_state, "project": project}
    after = local.train(key, loss, tx, before, batches, **kept)
    trained, _, stats = after.model
    mask = straight_through.filter_masks(*trained)
    # Thresholds take five operations a weight and step: |w| and its sum, and the two
    # gradients through the mask.
    size = sum(kernel.size for kernel in straight_through.kernels(*trained).values())
    steps = jnp.sum(jnp.any(batches.weight > 0, axis=-1), dtype=jnp.float32)
    count, extra = after.metrics["count"], steps * (5.0 * size)
    return Client(trained, stats, after.opt_state), after.metrics | {
        "work": local.work(count, mask, extra=extra),
        "density": masks.density(mask, masks.everything(mask)),
    }


def regularised(loss_fn, round: Array, options: Options) -> Callable:
    """The loss at pruned weights, plus alpha sum_i exp(-threshold_i), eq. (5).

    With `warmup` alpha is multiplied by sigmoid(10 round - 5), as in the official code.
    """
    alpha = jnp.float32(options.alpha)
    if options.warmup:
        alpha = alpha * jax.nn.sigmoid(10.0 * round - 5.0)

    def loss(key, trained: Trained, *rest):
        params, thresholds = trained
        if options.thresholds_only:
            params = jax.lax.stop_gradient(params)
        if options.reset == "same":
            thresholds = straight_through.revived(params, thresholds)
        pruned = straight_through.prune(params, thresholds, options.ste)
        value, others = loss_fn(key, pruned, *rest)
        penalty = sum(jnp.sum(jnp.exp(-t)) for t in thresholds.values())
        return value + alpha * penalty, others

    return loss


def _clamped(trained: Trained) -> Trained:
    """Kernels in [-1, 1] and thresholds in [0, 1], section 3.1."""
    paths, (leaves, treedef) = (
        trees.leaf_paths(trained.params),
        jax.tree.flatten(trained.params),
    )
    params = [
        jnp.clip(v, -1.0, 1.0) if path in trained.thresholds else v
        for path, v in zip(paths, leaves, strict=True)
    ]
    thresholds = jax.tree.map(lambda t: jnp.clip(t, 0.0, 1.0), trained.thresholds)
    return Trained(treedef.unflatten(params), thresholds)


def personalize(key, server, client: Client, info) -> dict[str, SparseModel]:
    """Gives a client's own model: its weights where its filters are alive."""
    del key, server, info
    params, thresholds = client.trained
    mask = straight_through.filter_masks(params, thresholds)
    model = SparseModel(masks.apply(params, mask), mask, client.stats)
    return {"personal": model}
