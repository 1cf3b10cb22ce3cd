"""The training loop of one client: loss, optimizer, steps, projection.

A step beyond the client's own data leaves the whole state unchanged. It selects the
*result*, because multiplying by a zero weight would let `0 * NaN` through.
"""

import dataclasses
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from sparsefl_jax.core import types
from sparsefl_jax.core.algorithm import method
from sparsefl_jax.core.check import UserError, blame, check
from sparsefl_jax.core.lookup import look_up
from sparsefl_jax.core.types import Array, Batches, Key, PyTree, SparseModel
from sparsefl_jax.models.base import Model
from sparsefl_jax.models.loss import SUMS
from sparsefl_jax.sparsity import masks

# Arguments of optax's optimizers that are decay rates in [0, 1).
_DECAYS = ("momentum", "b1", "b2", "b3", "decay", "decay_rate", "rho")

ANEW = types.EmptyState()  # stands for an optimizer's state that starts anew


class LocalState(NamedTuple):
    """The state that changes from step to step on a client."""

    params: PyTree  # float32
    stats: PyTree  # float32
    opt_state: PyTree
    sums: dict  # float32 sums over processed samples: loss, correct, count, ...


class Trained(NamedTuple):
    """The result of local training."""

    model: SparseModel  # the mask is that of the model before
    opt_state: PyTree  # to continue from; EmptyState if training began with it
    metrics: dict  # sums over processed samples, and `work`


@dataclasses.dataclass(frozen=True, eq=False)
class Optimizer:
    """A client optimizer whose learning rate follows the round.

    Called with a round, it returns the optax transformation of that round.

    Attributes:
      make: `(rate) -> optax.GradientTransformation`.
      rate: `(round) -> rate`.
      name: of the optimizer in optax.
      settings: the other arguments of `make_optimizer`, by name.

    Example:
      >>> halving = make_optimizer(schedule=lambda round: 0.5**round)
      >>> halving.rate(2), halving.name
      (0.25, 'sgd')
    """

    make: Callable
    rate: Callable
    name: str = ""
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __call__(self, round: Array | int) -> optax.GradientTransformation:
        """Returns the transformation of a round."""
        return self.make(self.rate(round))

    def at(self, round: Array, rate: Array) -> "Optimizer":
        """Returns the optimizer within a compiled round, whose rate is an input.

        The rate of another round that is known only when the program runs is NaN.
        """

        def known(other):
            if isinstance(other, int | np.integer):
                return self.rate(other)
            return jnp.where(other == round, rate, jnp.nan)

        return dataclasses.replace(self, rate=known)


def objective(model: Model, *, train: bool = True) -> Callable:
    """Returns the loss of a model as a function of its parameters.

    Args:
      model: the network and its loss.
      train: whether dropout and normalisation are those of training; if False, they
        are those of an evaluation, and the statistics stay.

    Returns:
      `loss_fn(key, params, stats, x, y, weight) -> (loss, (stats, sums))`, where loss
      and `sums` are those of `model.loss`.

    Raises:
      ValueError: it is not a `Model`; or, from `loss_fn`, the model's loss returns
        other sums or values that are not scalars.

    Example:
      >>> import sparsefl_jax as sfl
      >>> loss_fn = objective(sfl.testing.tiny_model())
    """
    if not isinstance(model, Model):
        raise UserError(f"model is a {type(model).__name__}, expected a Model")

    def loss_fn(key, params, stats, x, y, weight):
        options = {"weight": weight, "key": key} if train else {}
        logits, stats = model.apply(params, stats, x, train=train, **options)
        loss, sums = model.loss(logits, y, weight)
        shapes = jax.tree.map(jnp.shape, (loss, dict(sums)))
        if shapes != ((), dict.fromkeys(SUMS, ())):
            raise UserError(
                f"model.loss returned shapes {shapes}, expected a scalar and {SUMS}"
            )
        return loss, (stats, sums)

    return loss_fn


def find_optimizer(name: str, argument: str = "optimizer.name") -> Any:
    """Returns what optax calls so, or a user's `module:function`; None if nothing."""
    named = vars(optax) | {"muon": optax.contrib.muon}
    return look_up(argument, name, {}) if ":" in name else named.get(name)


@method
def make_optimizer(
    name: str = "sgd",
    *,
    learning_rate: float | Callable = 0.1,
    schedule: Callable | None = None,
    weight_decay: float = 0.0,
    clip: float = 0.0,
    **kwargs: Any,
) -> Optimizer:
    """Returns a client optimizer whose learning rate follows the round.

    Args:
      name: an optimizer of optax (`sgd`, `adam`, ...), or `my_module:my_optimizer`, a
        function that takes a `learning_rate` and returns an optax transformation.
        `muon`, of `optax.contrib`, orthogonalises 2-D leaves and leaves others to Adam.
      learning_rate: the constant rate, unused with a schedule.
      schedule: `(round) -> rate`, an optax schedule, such as those of `learning_rates`.
      weight_decay: passed to the optimizer if it takes one (`adamw`), or else added to
        the gradient, as in PyTorch's SGD.
      clip: the global gradient norm at which to clip, 0 for none.
      **kwargs: further arguments of the optimizer, such as `momentum`.

    Returns:
      `optimizer(round) -> optax.GradientTransformation`, an `Optimizer`. Its state does
      not hold the rate, so it can be kept from one round to the next.

    Raises:
      ValueError: optax has no such optimizer, it lacks an argument or needs more than
        gradients, or a number is out of range.

    Example:
      >>> tx = make_optimizer('sgd', learning_rate=0.5, momentum=0.9)(0)
      >>> updates, _ = tx.update(jnp.ones(2), tx.init(jnp.zeros(2)))
      >>> updates.tolist()
      [-0.5, -0.5]
    """
    factory = find_optimizer(name)
    takes = inspect.signature(factory).parameters if inspect.isfunction(factory) else ()
    if name.startswith(("_", "scale_by_")) or "learning_rate" not in takes:
        raise UserError(
            f"optimizer.name={name!r}, expected an optimizer of optax, or "
            "my_module:my_optimizer, a function of learning_rate"
        )
    numbers = dict(learning_rate=learning_rate, weight_decay=weight_decay, clip=clip)
    for argument, value in (numbers | kwargs).items():
        if isinstance(value, int | float):
            check(argument, value, "[0, 1)" if argument in _DECAYS else "[0, inf)")
    if "weight_decay" in takes:
        kwargs, weight_decay = kwargs | {"weight_decay": weight_decay}, 0.0
    before = [optax.clip_by_global_norm(clip)] if clip else []
    before += [optax.add_decayed_weights(weight_decay)] if weight_decay else []

    optimizer = Optimizer(
        lambda rate: optax.chain(*before, factory(rate, **kwargs)),
        schedule or (lambda round: learning_rate),
    )

    def step(round, params):
        tx = optimizer(round)
        return tx.update(params, tx.init(params), params)

    shape = jax.ShapeDtypeStruct
    with blame(f"optimizer.name={name!r}"):
        jax.eval_shape(step, shape((), jnp.int32), shape((1,), jnp.float32))
    return optimizer


def within(
    tx: optax.GradientTransformation, mask: PyTree
) -> optax.GradientTransformation:
    """Returns an optimizer that sees no gradient of what a mask removes.

    Its update may still be dense, as Muon's is; `train` masks the parameters.

    Example:
      >>> clipped = make_optimizer("sgd", learning_rate=1.0, clip=10.0)(0)
      >>> tx, w = within(clipped, jnp.array([True, False])), jnp.array([1.0, 0.0])
      >>> updates, _ = tx.update(jnp.array([30.0, 40.0]), tx.init(w), w)
      >>> (w + updates).tolist()
      [-9.0, 0.0]
    """
    masked = partial(masks.apply, mask=mask)
    return tx._replace(update=lambda grads, *rest: tx.update(masked(grads), *rest))


def init_optimizer(optimizer: Callable, params: PyTree, keep: bool) -> PyTree:
    """Returns the optimizer's part of a client's state: its state, or EmptyState.

    `train` continues from an optimizer's state and starts anew from EmptyState.

    Args:
      optimizer: as `make_optimizer` returns it.
      params: the shapes and dtypes of the client's parameters, or arrays. The optimizer
        starts at zeros, because a client that has not taken part knows no weights.
      keep: whether the client keeps the optimizer's state between rounds.
    """
    return optimizer(0).init(optax.tree.zeros_like(params)) if keep else ANEW


def start(tx, model, opt_state: PyTree = ANEW, sums: dict | tuple = ()) -> LocalState:
    """Returns the state before the first step; arguments as in `train`."""
    if isinstance(opt_state, types.EmptyState):
        opt_state = tx.init(model.params)
    sums = dict.fromkeys(SUMS, jnp.zeros((), jnp.float32)) | dict(sums)
    return LocalState(model.params, model.stats, opt_state, sums)


def own_steps(batches: Batches, epoch: Any = slice(None)) -> Array:
    """Counts the steps of an epoch, or of all, with a valid sample; shape=(), int32."""
    return jnp.sum(jnp.any(batches.weight[epoch] > 0, axis=-1), dtype=jnp.int32)


def num_steps(batches: Batches) -> Array:
    """Counts a client's own steps in all epochs; shape=(), int32, at least 1."""
    return jnp.maximum(own_steps(batches), 1)


def train_steps(
    key: Key,
    loss_fn: Callable,
    tx: optax.GradientTransformation,
    state: LocalState,
    batches: Batches,
    *,
    epoch: Array | int,
    first: Array | int,
    last: Array | int | None,
    num_trips: Array | int,
    project: Callable = lambda params: params,
) -> LocalState:
    """Runs steps `first` to `last` (exclusive) of an epoch.

    Args:
      key: the key of this epoch; step `s` uses `fold_in(key, s)`.
      loss_fn: as `objective` returns it.
      tx: the optimizer.
      state: the state before the first of these steps.
      batches: the client's data.
      epoch, first, last: int32 scalars, which may differ between clients; a `last` of
        None means that all of them run all steps.
      num_trips: an int32 scalar that clients that run together share, at least
        `last - first`.
      project: a function of the parameters to apply after every step, such as a mask.

    Returns:
      The state after the last step. Its sum of losses is NaN if a parameter is not
      finite, as what keeps or sends the largest weights alone would hide that.
    """
    grad_fn = jax.value_and_grad(loss_fn, argnums=1, has_aux=True)
    capacity = batches.order.shape[1]

    def body(trip, state):
        step = first + trip
        slot = jnp.minimum(step, capacity - 1)
        rows, weight = batches.order[epoch, slot], batches.weight[epoch, slot]
        x, y = batches.x[rows], batches.y[rows]
        (_, (stats, sums)), grads = grad_fn(
            jax.random.fold_in(key, step), state.params, state.stats, x, y, weight
        )
        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        params = project(optax.apply_updates(state.params, updates))
        sums = optax.tree.add(state.sums, sums)
        new = LocalState(params, stats, opt_state, sums)
        if last is None:  # static branch: a select would be a pass over all weights
            return new
        return jax.tree.map(lambda n, o: jnp.where(step < last, n, o), new, state)

    state = jax.lax.fori_loop(0, num_trips, body, state)
    leaves = jax.tree.leaves(state.params)
    finite = jax.lax.platform_dependent(leaves, cpu=_each_finite, default=_all_finite)
    loss = jnp.where(finite, state.sums["loss"], jnp.nan)
    return state._replace(sums=state.sums | {"loss": loss})


def _each_finite(leaves: list[Array]) -> Array:
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))


def _all_finite(leaves: list[Array]) -> Array:
    """As one array, which on a GPU is one kernel, and on a CPU a costly copy."""
    return jnp.all(jnp.isfinite(jnp.concatenate([jnp.ravel(v) for v in leaves])))


def train_epochs(
    key: Key,
    loss_fn: Callable,
    tx: optax.GradientTransformation,
    state: LocalState,
    batches: Batches,
    *,
    first: int = 0,
    last: int | None = None,
    project: Callable = lambda params: params,
) -> LocalState:
    """Runs epochs `first` to `last` (exclusive; None for all) of `batches`.

    The other arguments are those of `train_steps`.
    """

    def body(epoch, state):
        span: dict[str, Any] = {"epoch": epoch, "first": 0, "project": project}
        static = isinstance(batches.num_steps, np.integer)
        span["last"] = None if static else own_steps(batches, epoch)
        span["num_trips"] = batches.num_steps
        step_key = jax.random.fold_in(key, epoch)
        return train_steps(step_key, loss_fn, tx, state, batches, **span)

    last = batches.order.shape[0] if last is None else last
    return jax.lax.fori_loop(first, last, body, state)


def train(
    key: Key,
    loss_fn: Callable,
    tx: optax.GradientTransformation,
    model: SparseModel,
    batches: Batches,
    *,
    opt_state: PyTree = ANEW,
    sums: dict | tuple = (),
    project: Callable | None = None,
    gradients: str = "masked",
) -> Trained:
    """Trains a client's model for all epochs of its batches.

    The optimizer sees the gradient within the mask alone, as the work counts it: what
    the mask removes adds nothing to a norm that is clipped, nor to a momentum.

    Args:
      key: the key of the client and round.
      loss_fn: as `objective` returns it.
      tx: the optimizer.
      model: the model before training. Its mask is applied to the parameters after
        every step, and the work counts what it keeps. A mask of None keeps everything.
      batches: the client's data.
      opt_state: the optimizer's state to continue from; EmptyState starts anew.
      sums: zeros for the sums of `loss_fn` beside `loss`, `correct` and `count`. One
        named `work` is the work; without it, it follows from the mask.
      project: a function of the parameters that replaces the mask after every step.
        Gradients are dense then.
      gradients: 'masked', or 'dense' if the optimizer sees those of all weights.

    Returns:
      The `Trained` model. Its loss is NaN if a parameter is not finite.
    """
    check("gradients", gradients, ("masked", "dense"))
    dense = model.mask is None
    if project is None and gradients == "masked" and not dense:
        tx = within(tx, model.mask)
    if project is None:
        masked = partial(masks.apply, mask=model.mask)
        project = (lambda params: params) if dense else masked
    state = start(tx, model, opt_state, sums)
    state = train_epochs(key, loss_fn, tx, state, batches, project=project)
    if not isinstance(opt_state, types.EmptyState):
        opt_state = state.opt_state
    count = state.sums["count"]
    done = dense_work(count, model.params) if dense else work(count, model.mask)
    trained = SparseModel(state.params, model.mask, state.stats)
    return Trained(trained, opt_state, {"work": done, **state.sums})


def work(count: Array, mask: PyTree, extra: Array | float = 0.0) -> types.Work:
    """Returns the work of `count` samples if all passes skip what `mask` removes.

    `extra` counts FLOPs of mask work.

    Example:
      >>> work(jnp.float32(8), {'w': jnp.array([True, False])}).forward['w'].item()
      4.0
    """
    share = jax.tree.map(lambda m: count * jnp.mean(m, dtype=jnp.float32), mask)
    samples, extra = (jnp.asarray(v, jnp.float32) for v in (count, extra))
    return types.Work(share, share, share, samples, extra)


def dense_work(count: Array, params: PyTree) -> types.Work:
    """Returns the work of `count` samples in a dense network."""
    return work(count, jax.tree.map(lambda p: jnp.ones((), bool), params))
