"""The interface of a network to the rest of the package: functions, loss and macs."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from sparsefl_jax.core.check import UserError, blame, check
from sparsefl_jax.core.types import Array, Frozen, PyTree
from sparsefl_jax.models import adapters, modules, multiply_adds, saved_inputs
from sparsefl_jax.models.layers import is_static
from sparsefl_jax.models.loss import cross_entropy

DTYPES = ("float32", "bfloat16")
Widths = tuple[int, ...]  # of the layers, from the input on


class _Fields(NamedTuple):
    init: Callable
    apply: Callable
    macs: PyTree  # Python ints, same treedef as params
    static_stats: bool = False
    dtype: str = "float32"
    loss: Callable = cross_entropy
    tokens: bool = False
    name: str = ""
    settings: dict[str, Any] = {}
    frozen: Frozen = Frozen()
    merged: Callable | None = None


class Model(_Fields):
    """A network as pure functions.

    Attributes:
      init: `(key) -> (params, stats)`, nested dicts of float32; `stats` holds the
        statistics of normalisation, `{}` where there are none.
      apply: `(params, stats, x, *, train, weight=None, key=None) -> (logits, stats)`.
        x [B, ...], logits [B, C] or [B, T, C] float32; weight [B] is 0 for padded
        samples, which leave the statistics alone; key draws dropout. Statistics change
        in training.
      macs: a tree of ints like params: the multiply-adds of each leaf in the forward
        pass of one sample, 0 for biases and normalisation.
      static_stats: whether an evaluation has to compute statistics first; training
        returns those of the last batch.
      dtype: the dtype that `apply` computes in, one of `DTYPES`.
      loss: `(logits, targets, weight) -> (loss, sums)`. Training minimises it and
        evaluation reports it, see `fitting`.
      tokens: whether `apply` takes integers and looks them up in a table.
      name: of the network, such as the class of a module; one that is made by hand
        needs it for a run with files. `_replace` of `init` or `apply` makes another
        network, which has no name until it is given one.
      settings: what else differs between networks of this name.
      frozen: the weights that are constants, see `types.Frozen`; by default none.
      merged: `(params) -> params` of the network without adapters, which computes the
        same; None if this one has none, see `with_adapters`.
    """

    __slots__ = ()
    with_adapters = adapters.with_adapters

    def _replace(self, **changed) -> "Model":
        if {"init", "apply"} & changed.keys():
            changed = {"name": "", "settings": {}} | changed
        return super()._replace(**changed)

    def _replace_apply(self, apply: Callable, **setting: Any) -> "Model":
        """Returns this network by another function, named with a further setting."""
        more = {k: (*self.settings.get(k, ()), v) for k, v in setting.items()}
        return self._replace(apply=apply, name=self.name, settings=self.settings | more)

    @property
    def layers(self) -> PyTree:
        """Python bools like params: the leaves that multiply, whose masks are told."""
        return jax.tree.map(lambda m: m > 0, self.macs)

    def shapes(self) -> tuple[PyTree, PyTree]:
        """Returns the shapes and dtypes of `(params, stats)`."""
        return jax.eval_shape(self.init, jax.random.key(0))

    @staticmethod
    def from_flax(module: nn.Module, example: Array | jax.ShapeDtypeStruct) -> "Model":
        """Wraps a linen module after testing it on three samples.

        The module's `__call__` takes a batch. It also receives those of these arguments
        that it has: `train` (or `training`, `is_training`), `deterministic` (or
        `use_running_average`), and `weight` [B], 0 for padded samples. Linen's
        `BatchNorm` leaves padded samples out without it. A dropout layer draws from the
        stream `dropout`.

        Args:
          module: a linen module with no collections other than `params` and
            `batch_stats`.
          example: a batch [B, ...], or its shape and dtype.

        Returns:
          A `Model`.

        Raises:
          ValueError: the module has an unsupported collection or argument, fails, or
            lets padded samples change valid ones or the statistics.

        Example:
          >>> example = jax.ShapeDtypeStruct((8, 3), jnp.float32)
          >>> Model.from_flax(nn.Dense(4), example).macs
          {'bias': 0, 'kernel': 12}
        """
        return _try_module(*modules.of_linen(module, example), example, module=module)

    @staticmethod
    def from_nnx(make: Callable, example: Array | jax.ShapeDtypeStruct) -> "Model":
        """Wraps an nnx module after testing it on three samples.

        The module's `__call__` takes a batch, and those arguments that `from_flax`
        names, or `rngs`. Its `train()` or `eval()` is called before, which sets every
        `BatchNorm` and `Dropout` in it. `nnx.BatchNorm` leaves padded samples out.
        Random streams that the module keeps are seeded anew in every step, and always
        alike in evaluation.

        Args:
          make: `(*, rngs) -> module`, such as a class or `functools.partial` of one.
            The module has no variables other than `nnx.Param`, `nnx.BatchStat` and
            random streams.
          example: a batch [B, ...], or its shape and dtype.

        Returns:
          A `Model`. Its leaves are named as the module's attributes are.

        Raises:
          ValueError: as `from_flax`, or `make` returns no nnx module.

        Example:
          >>> from flax import nnx
          >>> example = jax.ShapeDtypeStruct((8, 3), jnp.float32)
          >>> Model.from_nnx(lambda rngs: nnx.Linear(3, 4, rngs=rngs), example).macs
          {'bias': 0, 'kernel': 12}
        """
        return _try_module(*modules.of_nnx(make), example, make=make)

    def with_loss(self, loss: Callable) -> "Model":
        """Returns the same network with another loss, for training and evaluation.

        Args:
          loss: `(logits, targets, weight) -> (loss, sums)`. The targets are a batch's
            labels [B] or [B, T], or distributions like the logits if a method distils.
            weight [B] is 0 for padded samples, which must not change the result. The
            loss is a scalar to minimise. `sums` has exactly the keys `loss`, `correct`
            and `count`: float32 sums over valid samples, where each sample adds 1 or 0
            to `correct`, or the share of its T targets. An evaluation calls the
            function on one sample at a time.

        Returns:
          A `Model`.

        Example:
          >>> def squared(logits, targets, weight):
          ...     aim = jax.nn.one_hot(targets, logits.shape[-1])
          ...     losses = weight * jnp.sum((logits - aim) ** 2, -1)
          ...     correct = weight * (jnp.argmax(logits, -1) == targets)
          ...     sums = {"loss": losses, "correct": correct, "count": weight}
          ...     sums = jax.tree.map(jnp.sum, sums)
          ...     return sums["loss"] / jnp.maximum(sums["count"], 1.0), sums
          >>> example = jax.ShapeDtypeStruct((8, 3), jnp.float32)
          >>> model = Model.from_flax(nn.Dense(2), example).with_loss(squared)
          >>> model.loss(jnp.zeros((1, 2)), jnp.array([1]), jnp.ones(1))[0].item()
          1.0
        """
        return self._replace(loss=loss)

    def with_dtype(self, dtype: str) -> "Model":
        """Returns the same network computed in `dtype`.

        Call it before `with_preprocess`. Only `apply` changes: it casts parameters and
        input. Parameters, their gradients (through the transpose of the cast),
        statistics and logits stay float32.

        Args:
          dtype: 'float32' or 'bfloat16'.

        Returns:
          A `Model`.

        Raises:
          ValueError: `dtype` is neither.

        Example:
          >>> example = jax.ShapeDtypeStruct((8, 3), jnp.float32)
          >>> model = Model.from_flax(nn.Dense(1, use_bias=False), example)
          >>> params = {"kernel": jnp.full((3, 1), 1 + 2**-9)}
          >>> x, half = jnp.ones((1, 3)), model.with_dtype("bfloat16")
          >>> [m.apply(params, {}, x, train=False)[0].item() for m in (model, half)]
          [3.005859375, 3.0]
        """
        check("dtype", dtype, DTYPES)
        if dtype == self.dtype:
            return self

        def cast(v):
            floating = jnp.issubdtype(v.dtype, jnp.floating)
            return jnp.asarray(v, dtype) if floating else v

        def apply(params, stats, x, **kwargs):
            params, x = jax.tree.map(cast, (params, x))
            logits, new = self.apply(params, stats, x, **kwargs)
            new = jax.tree.map(lambda v, old: v.astype(old.dtype), new, stats)
            return logits.astype(jnp.float32), new

        return self._replace_apply(apply)._replace(dtype=dtype)

    def with_outputs(self, mean: Sequence[float], std: Sequence[float]) -> "Model":
        """Returns the same network, whose outputs [B, T] are multiplied and shifted.

        Args:
          mean, std: [T], of the targets in a regression, which the network then learns
            in standard units.

        Example:
          >>> example = jax.ShapeDtypeStruct((8, 3), jnp.float32)
          >>> model = Model.from_flax(nn.Dense(1), example).with_outputs((5.0,), (2.0,))
          >>> zeros = jax.tree.map(jnp.zeros_like, model.init(jax.random.key(0)))
          >>> model.apply(*zeros, jnp.ones((1, 3)), train=False)[0].item()
          5.0
        """

        def apply(params, stats, x, **options):
            outputs, stats = self.apply(params, stats, x, **options)
            return outputs * jnp.float32([std]) + jnp.float32([mean]), stats

        return self._replace_apply(apply, scaling=(tuple(mean), tuple(std)))

    def with_inputs(self, hook: Callable, paths: Sequence[str]) -> "Model":
        """Returns the same network whose layers save other inputs in training.

        Args:
          hook: `(x [B, ...], kernel, weight [B]) -> x~`, like x: what a layer saves of
            its input, from which the gradient of its kernel follows. weight is 0 for
            padded samples. Output and input gradient are exact, and no gradient flows
            through the hook.
          paths: the kernels whose layers have the hook, such as 'conv1/kernel'.

        Returns:
          A `Model`. In training its `apply` raises ValueError if a path is no kernel of
          linen's `Conv`, `Dense` or `DenseGeneral`, or of `saved_inputs.affine`.

        Example:
          >>> example = jax.ShapeDtypeStruct((8, 3), jnp.float32)
          >>> model = Model.from_flax(nn.Dense(4), example)
          >>> blind = model.with_inputs(lambda x, kernel, weight: 0 * x, ["kernel"])
        """

        def apply(params, stats, x, **options):
            if not options["train"]:
                return self.apply(params, stats, x, **options)
            with saved_inputs.hooked(hook, paths, options.get("weight")):
                return self.apply(params, stats, x, **options)

        return self._replace_apply(apply, saving=(hook, tuple(paths)))

    def with_preprocess(self, preprocess: Callable) -> "Model":
        """Returns the same network with `preprocess` in front of it.

        Args:
          preprocess: `(key, x [B, ...], train) -> [B, ...]`, float32, or int32 for
            tokens, see `data.make_preprocess`; the key is None outside training.

        Returns:
          A `Model` whose `apply` takes raw samples.

        Example:
          >>> example = jax.ShapeDtypeStruct((8, 3), jnp.float32)
          >>> model = Model.from_flax(nn.Dense(4), example)
          >>> halve = lambda key, x, train: x.astype(jnp.float32) / 2
          >>> halved = model.with_preprocess(halve)
          >>> raw = jnp.ones((2, 3), jnp.uint8)
          >>> halved.apply(*halved.init(jax.random.key(0)), raw, train=False)[0].shape
          (2, 4)
        """

        def apply(params, stats, x, *, train, weight=None, key=None):
            input_key, key = (None, None) if key is None else jax.random.split(key)
            x = preprocess(input_key, x, train)
            return self.apply(params, stats, x, train=train, weight=weight, key=key)

        return self._replace_apply(apply, reading=preprocess)


def _try_module(
    kind: str, init: Callable, apply: Callable, example, **settings
) -> Model:
    """Returns the model of a user's module, after a test on three samples."""
    with blame(kind):
        model = _count(Model(init, apply, {}, name=kind, settings=settings), example)
        modules.try_out(model, example)
    return model


def _count(model: Model, example: Array | jax.ShapeDtypeStruct) -> Model:
    """Returns the model with the multiply-adds that its traced program has.

    Raises:
      ValueError: it has no parameters, or more than an int32 can count.
    """
    try:
        params, stats = model.shapes()
        size = sum(leaf.size for leaf in jax.tree.leaves(params))
    except OverflowError:  # from drawing a leaf that is too large
        size = 2**31
    if not 0 < size < 2**31:
        raise UserError(f"{size} parameters, expected at least 1 and below 2**31")

    def forward(params, given):
        stats, x = given
        return model.apply(params, stats, x, train=False)[0]

    sample = jax.ShapeDtypeStruct((1, *example.shape[1:]), example.dtype)
    macs = multiply_adds.count(forward, params, (stats, sample))
    tokens = bool(jnp.issubdtype(example.dtype, jnp.integer))
    static = any(jax.tree.leaves(is_static(stats)))
    return model._replace(macs=macs, tokens=tokens, static_stats=static)


class Layers(nn.Module):
    """The layers of a function of a batch, by the names that it gives them."""

    function: Callable  # (x, train, weight) -> logits

    @nn.compact
    def __call__(self, x, train, weight=None):
        """Applies the function."""
        return self.function(x, train, weight)


def model_of(module: nn.Module, input_shape: tuple, dtype: Any = jnp.float32) -> Model:
    """Returns the model of a module that takes samples of a shape and a dtype."""
    example = jax.ShapeDtypeStruct((1, *input_shape), dtype)
    _, init, apply = modules.of_linen(module, example)
    return _count(Model(init, apply, {}), example)


def check_widths(widths: Widths, count: int) -> Widths:
    """Returns the widths of `count` layers as a tuple.

    Raises:
      ValueError: there are more or fewer widths, or one is below 1.
    """
    if len(widths) != count or min(widths, default=1) < 1:
        raise UserError(f"widths={tuple(widths)}, expected {count}, each at least 1")
    return tuple(widths)
