"""What the rest of the package sees of a network: its functions, its loss, its macs."""

import math
from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from sparsefl_jax.core.types import PyTree
from sparsefl_jax.models import linen
from sparsefl_jax.models.loss import cross_entropy
from sparsefl_jax.models.norm import is_static

DTYPES = ("float32", "bfloat16")


class Model(NamedTuple):
    """A network as pure functions.

    Attributes:
      init: `(key) -> (params, stats)`, nested dicts of float32; `stats` holds the
        statistics of normalisation, `{}` where there are none.
      apply: `(params, stats, x, *, train, weight=None, key=None) -> (logits, stats)`.
        x [B, ...], logits [B, C] float32; weight [B] is 0 for padded samples, which
        leave the statistics alone; key draws dropout. Statistics change in training.
      macs: a tree like params of ints: the multiply-adds that a leaf takes part in for
        one sample's forward pass, 0 for biases and normalisation.
      static_stats: whether statistics are to be made before an evaluation, by
        `recalibrate`; training gives back those of the last batch.
      dtype: what `apply` computes in, of `DTYPES`.
      loss: `(logits, targets, weight) -> (loss, sums)`, what training minimises and
        what an evaluation reports, see `fitting`.
    """

    init: Callable
    apply: Callable
    macs: PyTree  # Python ints, same treedef as params
    static_stats: bool = False
    dtype: str = "float32"
    loss: Callable = cross_entropy

    @classmethod
    def from_flax(cls, module: nn.Module, example) -> "Model":
        """Wraps a linen module, and tries it out on three samples.

        The module's `__call__` takes a batch. Where it has arguments of that name it
        is told `train` (or `training`, `is_training`), `deterministic` (or
        `use_running_average`), and `weight` [B], 0 for padded samples. Linen's
        `BatchNorm` leaves these out by itself. A dropout layer draws from the stream
        `dropout`.

        Args:
          module: a linen module with the collections `params` and `batch_stats` only.
          example: a batch, or a `jax.ShapeDtypeStruct` of one.

        Returns:
          A `Model`.

        Raises:
          ValueError: if the module has a collection or an argument that is not
            supported, fails, or lets padded samples change valid ones or statistics.

        >>> example = jax.ShapeDtypeStruct((8, 3), jnp.float32)
        >>> Model.from_flax(nn.Dense(4), example).macs
        {'bias': 0, 'kernel': 12}
        """
        model = wrap(module, example)
        linen.try_out(module, model.init, model.apply, _one(example))
        return model

    def fitting(self, loss: Callable) -> "Model":
        """Returns the same network with another loss, in training and evaluation.

        Args:
          loss: `(logits, targets, weight) -> (loss, sums)`. The targets are a batch's
            labels, or a distribution [B, C] where a method distils; weight [B] is 0 for
            padded samples, which must change nothing. The loss is a scalar to minimise;
            `sums` has exactly the keys `loss`, `correct` and `count`: float32 sums over
            valid samples, `correct` of 1 or 0 each. An evaluation calls it on one
            sample at a time.

        Returns:
          A `Model`.

        Raises:
          ValueError: the loss is no function.

        Example:
          >>> def squared(logits, targets, weight):
          ...     aim = jax.nn.one_hot(targets, logits.shape[-1])
          ...     losses = weight * jnp.sum((logits - aim) ** 2, -1)
          ...     correct = weight * (jnp.argmax(logits, -1) == targets)
          ...     sums = {"loss": losses, "correct": correct, "count": weight}
          ...     sums = jax.tree.map(jnp.sum, sums)
          ...     return sums["loss"] / jnp.maximum(sums["count"], 1.0), sums
          >>> example = jax.ShapeDtypeStruct((8, 3), jnp.float32)
          >>> model = Model.from_flax(nn.Dense(2), example).fitting(squared)
          >>> model.loss(jnp.zeros((1, 2)), jnp.array([1]), jnp.ones(1))[0].item()
          1.0
        """
        if not callable(loss):
            raise ValueError(f"loss={loss!r}, expected a function of three arguments")
        return self._replace(loss=loss)

    def computing(self, dtype: str) -> "Model":
        """The same network computed in `dtype`; to be called before `reading`.

        Only `apply` changes: it casts parameters and input. Parameters, their gradients
        (through the transpose of the cast), statistics and logits stay float32.

        Args:
          dtype: 'float32' or 'bfloat16'.

        Returns:
          A `Model`.

        Raises:
          ValueError: on another dtype.

        >>> example = jax.ShapeDtypeStruct((8, 3), jnp.float32)
        >>> model = Model.from_flax(nn.Dense(1, use_bias=False), example)
        >>> params = {"kernel": jnp.full((3, 1), 1 + 2**-9)}
        >>> x, half = jnp.ones((1, 3)), model.computing("bfloat16")
        >>> [m.apply(params, {}, x, train=False)[0].item() for m in (model, half)]
        [3.005859375, 3.0]
        """
        check_dtype("dtype", dtype)
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

        return self._replace(apply=apply, dtype=dtype)

    def reading(self, preprocess: Callable) -> "Model":
        """The same network fed with raw samples, which `preprocess` turns into input.

        Args:
          preprocess: `(key, x [B, ...], train) -> float32 [B, ...]`, see
            `data.make_preprocess`; the key is None outside training.

        Returns:
          A `Model` whose `apply` takes raw samples.

        >>> example = jax.ShapeDtypeStruct((8, 3), jnp.float32)
        >>> model = Model.from_flax(nn.Dense(4), example)
        >>> halved = model.reading(lambda key, x, train: x.astype(jnp.float32) / 2)
        >>> raw = jnp.ones((2, 3), jnp.uint8)
        >>> halved.apply(*halved.init(jax.random.key(0)), raw, train=False)[0].shape
        (2, 4)
        """

        def apply(params, stats, x, *, train, weight=None, key=None):
            input_key, key = (None, None) if key is None else jax.random.split(key)
            x = preprocess(input_key, x, train)
            return self.apply(params, stats, x, train=train, weight=weight, key=key)

        return self._replace(apply=apply)


def wrap(module: nn.Module, example) -> Model:
    """As `Model.from_flax`, of a module that is known to be right; nothing runs."""
    told, one = linen.arguments(module), _one(example)

    def variables(key):
        x = jnp.zeros(one.shape, one.dtype)
        return module.init(key, x, **told(False))

    # jit drops the forward pass that linen's init runs. What is left runs once, and
    # compiling it with optimisation takes ten times as long as without.
    quick = {"xla_backend_optimization_level": 0}
    compiled = jax.jit(variables, compiler_options=quick)

    def init(key):
        traced = isinstance(key, jax.core.Tracer)
        made = variables(key) if traced else compiled(key)
        return made["params"], made.get("batch_stats", {})

    def apply(params, stats, x, *, train, weight=None, key=None):
        held = {"params": params} | ({"batch_stats": stats} if stats else {})
        with linen.without_padding(weight):
            logits, changed = module.apply(
                held,
                x,
                **told(train, weight),
                rngs=None if key is None else {"dropout": key},
                mutable=["batch_stats"] if train and stats else [],
            )
        new = changed.get("batch_stats", stats)
        new = linen.keep_unless_valid(weight, new, stats) if train else new
        return logits.astype(jnp.float32), new

    macs, stats = _count_macs(variables)
    return Model(init, apply, macs, any(jax.tree.leaves(is_static(stats))))


def _one(example) -> jax.ShapeDtypeStruct:
    """The shape of one sample as a batch."""
    return jax.ShapeDtypeStruct((1, *example.shape[1:]), example.dtype)


def _count_macs(variables: Callable) -> tuple[PyTree, PyTree]:
    """Traces `module.init`: a kernel's entries times its positions; stats' shapes."""
    counts = {}

    def count(call, args, kwargs, context):
        out = call(*args, **kwargs)
        module = context.module
        holds = module.has_variable("params", "kernel")
        if holds and context.method_name == "__call__":
            size = module.get_variable("params", "kernel").size
            features = getattr(module, "features", out.shape[-1])
            width = features if isinstance(features, int) else math.prod(features)
            path = (*module.path, "kernel")
            counts[path] = counts.get(path, 0) + size * (out.size // width)
        return out

    try:
        with nn.intercept_methods(count):
            shapes = jax.eval_shape(variables, jax.random.key(0))
        size = sum(math.prod(v.shape) for v in jax.tree.leaves(shapes))
    except OverflowError:  # of the draw of a leaf
        size = 2**31
    if size >= 2**31:
        raise ValueError(
            "the network has 2**31 parameters or more, expected fewer: smaller widths "
            "or num_classes"
        )
    if unknown := set(shapes) - {"params", "batch_stats"}:
        allowed = "only 'params' and 'batch_stats' are supported"
        raise ValueError(f"module has the collections {sorted(unknown)}; {allowed}")
    if "params" not in shapes:
        raise ValueError("module has no parameters, expected something to train")

    def of_leaf(path, _):
        return counts.get(tuple(entry.key for entry in path), 0)

    macs = jax.tree_util.tree_map_with_path(of_leaf, shapes["params"])
    return macs, shapes.get("batch_stats", {})


def image_model(module: nn.Module, input_shape: tuple[int, ...]) -> Model:
    """The model of a module that takes float32 images of a shape (H, W, C)."""
    example = jax.ShapeDtypeStruct((1, *input_shape), jnp.float32)
    return wrap(module, example)


def check_dtype(name: str, dtype: str) -> None:
    """Refuses, under the name of an argument, what is not of `DTYPES`.

    Raises:
      ValueError: in one line.
    """
    if dtype not in DTYPES:
        raise ValueError(f"{name}={dtype!r}, expected {' or '.join(map(repr, DTYPES))}")


def check_widths(widths: tuple[int, ...], count: int) -> tuple[int, ...]:
    """The widths of `count` layers.

    Raises:
      ValueError: there are more or fewer, or one is below 1.
    """
    if len(widths) != count or min(widths) < 1:
        raise ValueError(
            f"widths={tuple(widths)}, expected {count} numbers of at least 1"
        )
    return tuple(widths)
