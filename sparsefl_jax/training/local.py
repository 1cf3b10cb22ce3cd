"""The client's training loop: loss, optimizer, steps, projection.

Everything here is for one client. A step that lies beyond the client's own data leaves
the whole state as it was, by a select on the *result*: a zero weight would let
`0 * NaN` through.
"""

import difflib
import inspect
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from sparsefl_jax.core.types import Array, Batches, Key, PyTree, Work

# Arguments of optax's optimizers that are shares of what was before.
_SHARES = ("momentum", "b1", "b2", "b3", "decay", "decay_rate", "rho")


class LocalState(NamedTuple):
    """What changes from step to step on a client."""

    params: PyTree  # float32
    stats: PyTree  # float32
    opt_state: PyTree
    sums: dict  # loss, correct, count: float32 scalars, sums over processed samples


def cross_entropy(model) -> Callable:
    """The standard loss: mean softmax cross-entropy over a batch's valid samples.

    Args:
      model: a `Model`.

    Returns:
      `loss_fn(key, params, stats, x, y, weight) -> (loss, (stats, sums))` with the loss
      in nats per sample; `sums` holds `loss`, `correct` and `count` of valid samples.
      Keywords change what is fitted: `classes` [C] bool sets the logits of all others
      to 0 (HeteroFL); `teacher`, parameters and statistics, has the labels replaced by
      the softmax of that network's logits, through which no gradient flows;
      `temperature` divides the logits (GraSP).
    """

    def loss_fn(
        key, params, stats, x, y, weight, *, classes=None, teacher=None, temperature=1.0
    ):
        def forward(params, stats):
            return model.apply(params, stats, x, train=True, weight=weight, key=key)

        logits, stats = forward(params, stats)
        if classes is not None:  # static branch
            logits = jnp.where(classes[None], logits, jnp.zeros_like(logits))
        if temperature != 1:  # static branch
            logits = logits / temperature
        valid = weight > 0
        if teacher is None:  # static branch
            losses = optax.losses.softmax_cross_entropy_with_integer_labels(logits, y)
        else:
            told, _ = forward(*lax.stop_gradient(teacher))
            losses = optax.losses.softmax_cross_entropy(logits, jax.nn.softmax(told))
        total = jnp.sum(jnp.where(valid, losses, 0.0))
        correct = jnp.sum(valid & (jnp.argmax(logits, -1) == y), dtype=jnp.float32)
        count = jnp.sum(valid, dtype=jnp.float32)
        sums = {"loss": total, "correct": correct, "count": count}
        return total / jnp.maximum(count, 1.0), (stats, sums)

    return loss_fn


def make_optimizer(
    name: str = "sgd",
    *,
    learning_rate: float = 0.1,
    schedule: Callable | None = None,
    weight_decay: float = 0.0,
    clip: float = 0.0,
    **kwargs,
) -> Callable:
    """A client optimizer whose learning rate follows the round.

    Args:
      name: an optimizer of optax (`sgd`, `adam`, ...).
      learning_rate: the rate where no schedule is given.
      schedule: `(round) -> rate`, an optax schedule.
      weight_decay: the optimizer's own where it takes one (`adamw`), else added to the
        gradient, as in PyTorch's SGD.
      clip: global gradient norm at which to clip, 0 for none.
      **kwargs: further arguments of the optimizer, such as `momentum`.

    Returns:
      `optimizer(round) -> optax.GradientTransformation`; its state does not hold the
      rate, so it can be kept from one round to the next.

    Raises:
      ValueError: if optax has no optimizer of that name, or it lacks an argument or
        needs more than gradients, or a number is negative or not finite, or a share
        such as `momentum` not below 1.

    Example:
      >>> tx = make_optimizer('sgd', learning_rate=0.5, momentum=0.9)(0)
      >>> updates, _ = tx.update(jnp.ones(2), tx.init(jnp.zeros(2)))
      >>> updates.tolist()
      [-0.5, -0.5]
    """
    factory = _optax_factory(name)
    given = {"learning_rate": learning_rate, "weight_decay": weight_decay, "clip": clip}
    _check_numbers(given | kwargs)
    if "weight_decay" in inspect.signature(factory).parameters:
        kwargs, weight_decay = kwargs | {"weight_decay": weight_decay}, 0.0
    before = [optax.clip_by_global_norm(clip)] if clip else []
    before += [optax.add_decayed_weights(weight_decay)] if weight_decay else []

    def optimizer(round):
        rate = learning_rate if schedule is None else schedule(round)
        return optax.chain(*before, factory(rate, **kwargs))

    def step(round, params):
        tx = optimizer(round)
        return tx.update(params, tx.init(params), params)

    shape = jax.ShapeDtypeStruct
    try:
        jax.eval_shape(step, shape((), jnp.int32), shape((1,), jnp.float32))
    except (TypeError, AttributeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"optimizer.name={name!r}: {reason}") from None
    return optimizer


def _check_numbers(given: dict) -> None:
    """Refuses a number that is negative or not finite, or a share of 1 and more."""
    for key, value in given.items():
        if not isinstance(value, int | float):
            continue
        if key in _SHARES and not 0 <= value < 1:
            raise ValueError(f"{key}={value}, expected in [0, 1)")
        if not 0 <= value < float("inf"):
            raise ValueError(f"{key}={value}, expected a finite number of at least 0")


def _optax_factory(name: str) -> Callable:
    """A function of optax that makes an optimizer of a learning rate."""
    known = {
        key: value
        for key, value in vars(optax).items()
        if inspect.isfunction(value)
        and not key.startswith(("_", "scale_by_"))
        and "learning_rate" in inspect.signature(value).parameters
    }
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(f"optimizer.name={name!r}{hint}, expected an optimizer of optax")


def start(
    tx: optax.GradientTransformation, params, stats, opt_state=None
) -> LocalState:
    """The state before the first step; a given `opt_state` continues an optimizer."""
    zero = jnp.zeros((), jnp.float32)
    opt_state = tx.init(params) if opt_state is None else opt_state
    sums = {"loss": zero, "correct": zero, "count": zero}
    return LocalState(params, stats, opt_state, sums)


def own_steps(batches: Batches, epoch) -> Array:
    """Number of steps of this epoch that hold a valid sample; shape=(), int32."""
    return jnp.sum(jnp.any(batches.weight[epoch] > 0, axis=-1), dtype=jnp.int32)


def train_steps(
    key: Key,
    loss_fn: Callable,
    tx: optax.GradientTransformation,
    state: LocalState,
    batches: Batches,
    *,
    epoch,
    first,
    last,
    num_trips,
    project: Callable = lambda params: params,
) -> LocalState:
    """Runs steps `first` to `last` (exclusive) of an epoch.

    Args:
      key: the key of this epoch; step `s` uses `fold_in(key, s)`.
      loss_fn: as `cross_entropy` returns it.
      tx: the optimizer.
      state: where to start.
      batches: the client's data.
      epoch, first, last: int32 scalars, may differ between clients.
      num_trips: int32 scalar shared by clients that run together, >= last - first.
      project: applied to the parameters after every step, such as a mask.
    """
    grad_fn = jax.value_and_grad(loss_fn, argnums=1, has_aux=True)
    capacity = batches.order.shape[1]

    def body(trip, state):
        step = first + trip
        at = jnp.minimum(step, capacity - 1)
        rows, weight = batches.order[epoch, at], batches.weight[epoch, at]
        x, y = batches.x[rows], batches.y[rows]
        (_, (stats, sums)), grads = grad_fn(
            jax.random.fold_in(key, step), state.params, state.stats, x, y, weight
        )
        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        params = project(optax.apply_updates(state.params, updates))
        sums = jax.tree.map(jnp.add, state.sums, sums)
        new = LocalState(params, stats, opt_state, sums)
        return jax.tree.map(lambda n, o: jnp.where(step < last, n, o), new, state)

    return lax.fori_loop(0, num_trips, body, state)


def train(
    key: Key,
    loss_fn: Callable,
    tx: optax.GradientTransformation,
    state: LocalState,
    batches: Batches,
    *,
    project: Callable = lambda params: params,
) -> LocalState:
    """Runs all epochs of `batches`; see `train_steps`."""

    def body(epoch, state):
        return train_steps(
            jax.random.fold_in(key, epoch),
            loss_fn,
            tx,
            state,
            batches,
            epoch=epoch,
            first=0,
            last=own_steps(batches, epoch),
            num_trips=batches.num_steps,
            project=project,
        )

    return lax.fori_loop(0, batches.order.shape[0], body, state)


def work(count: Array, mask: PyTree, extra=0.0) -> Work:
    """The work of `count` samples when all three passes skip what `mask` removes."""
    share = jax.tree.map(lambda m: count * jnp.mean(m, dtype=jnp.float32), mask)
    return Work(share, share, share, jnp.asarray(extra, jnp.float32))


def dense_work(count: Array, params: PyTree) -> Work:
    """The work of `count` samples through a dense network."""
    return work(count, jax.tree.map(lambda p: jnp.ones((), bool), params))
