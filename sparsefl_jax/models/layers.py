"""What networks need besides the layers of linen: initialisers and normalisation."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from sparsefl_jax.core.check import check
from sparsefl_jax.core.types import Array, Key, PyTree

# PyTorch's default kernel: U(-1 / sqrt(fan_in), 1 / sqrt(fan_in)).
torch_uniform = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def torch_bias(key: Key, shape, dtype=jnp.float32, *, fan_in: int) -> Array:
    """Draws PyTorch's default bias, U(-1 / sqrt(fan_in), 1 / sqrt(fan_in))."""
    bound = fan_in**-0.5
    return nn.initializers.uniform(2 * bound)(key, shape, dtype) - bound


# Statistics of these names are those of one batch. They are never sent.
STATIC_NAMES = ("batch_mean", "batch_var")


def is_static(stats: PyTree) -> PyTree:
    """Marks the statistics that an evaluation computes first, a tree of Python bools.

    Example:
      >>> is_static({'bn1': {'batch_mean': 0}, 'bn2': {'mean': 0}})
      {'bn1': {'batch_mean': True}, 'bn2': {'mean': False}}
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, _: path[-1].key in STATIC_NAMES, stats
    )


class BatchNorm(nn.Module):
    """Batch normalisation in one pass whose statistics leave out padded samples.

    Ioffe and Szegedy, ICML 2015, arXiv:1502.03167, with the constants of PyTorch. The
    running variance is the biased one.

    Attributes:
      momentum: the share of the running statistics that each step keeps.
      epsilon: the constant added to the variance.
      static: whether there are no running statistics (Diao et al., HeteroFL, ICLR
        2021). Training then returns the statistics of the batch, and
        `inference.make_recalibration` averages them before an evaluation.
    """

    momentum: float = 0.9
    epsilon: float = 1e-5
    static: bool = False

    @nn.compact
    def __call__(self, x: Array, *, train: bool, weight: Array | None = None) -> Array:
        """Normalises the last axis.

        Args:
          x: [B, ..., C].
          train: whether to use the statistics of the batch and to update the running
            ones with them.
          weight: [B], 0 for padding and positive for valid samples; None if all are
            valid.

        Returns:
          [B, ..., C] in x's dtype; the rows of padding are finite if x is.
        """
        shape = x.shape[-1:]
        scale = self.param("scale", nn.initializers.ones, shape, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, shape, jnp.float32)
        names = STATIC_NAMES if self.static else ("mean", "var")
        mean = self.variable("batch_stats", names[0], jnp.zeros, shape, jnp.float32)
        var = self.variable("batch_stats", names[1], jnp.ones, shape, jnp.float32)
        if train:
            count, batch_mean, batch_var = _moments(x, weight)
            momentum = 0.0 if self.static else self.momentum
            keep = jnp.where(count > 0, momentum, 1.0)
            new_mean = keep * mean.value + (1 - keep) * batch_mean
            new_var = keep * var.value + (1 - keep) * batch_var
            mean.value, var.value = lax.stop_gradient((new_mean, new_var))
        else:
            batch_mean, batch_var = mean.value, var.value
        factor = scale * lax.rsqrt(batch_var + self.epsilon)
        axes = tuple(range(x.ndim - 1))
        offset = jnp.expand_dims(bias - batch_mean * factor, axes)
        return (x * jnp.expand_dims(factor, axes) + offset).astype(x.dtype)


def _moments(x, weight):
    """Returns the number of valid samples, and their mean and variance, float32 [C]."""
    axes, x = tuple(range(x.ndim - 1)), x.astype(jnp.float32)
    if weight is None:
        count = jnp.full((), x.shape[0], jnp.float32)
    else:
        valid = weight > 0
        count = valid.sum(dtype=jnp.float32)
        x = jnp.where(jnp.expand_dims(valid, range(1, x.ndim)), x, 0.0)
    positions = x[0, ..., 0].size
    total = jnp.maximum(count, 1.0) * positions
    mean = x.sum(axes) / total
    return count, mean, jnp.maximum((x * x).sum(axes) / total - mean * mean, 0.0)


class GroupNorm(nn.Module):
    """Group normalisation of `flax.linen.GroupNorm`, in a form that is fast on CPU.

    Wu and He, ECCV 2018, arXiv:1803.08494. XLA:CPU adds and scales channels by vector
    instructions, but not groups of channels, so groups appear in arrays [B, C] alone.

    Attributes:
      num_groups: a divisor of the number of channels.
      epsilon: the constant added to the variance.
    """

    num_groups: int = 32
    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Normalises each sample's groups of channels.

        Args:
          x: [B, ..., C].

        Returns:
          [B, ..., C] in x's dtype.
        """
        shape = x.shape[-1:]
        scale = self.param("scale", nn.initializers.ones, shape, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, shape, jnp.float32)
        axes = tuple(range(1, x.ndim - 1))

        def mean(v):
            v = v.mean(axes).reshape(len(x), self.num_groups, -1)
            return jnp.repeat(v.mean(-1), v.shape[-1], axis=-1)

        wide = x.astype(jnp.float32)
        center = mean(wide)
        variance = jnp.maximum(mean(wide * wide) - center * center, 0.0)
        factor = scale[None] * lax.rsqrt(variance + self.epsilon)
        offset = bias[None] - center * factor
        factor, offset = (jnp.expand_dims(v, axes) for v in (factor, offset))
        return (wide * factor + offset).astype(x.dtype)


def norm(
    x: Array,
    kind: str | None,
    *,
    name: str,
    train: bool,
    weight: Array | None = None,
) -> Array:
    """Normalises the last axis.

    Args:
      x: [B, ..., C].
      kind: 'batch', 'static' (no running statistics, see `BatchNorm`), 'group' (32
        groups, or one for each of fewer channels, Wu and He 2018), or None, which
        returns x.
      name: the name of the submodule.
      train, weight: as in `BatchNorm`.

    Raises:
      ValueError: the kind is unknown.
    """
    check("norm", kind, ("batch", "static", "group", None))
    if kind is None:
        return x
    if kind == "group":
        return GroupNorm(min(32, x.shape[-1]), epsilon=1e-5, name=name)(x)
    static = kind == "static"
    return BatchNorm(static=static, name=name)(x, train=train, weight=weight)
