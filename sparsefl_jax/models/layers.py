"""Layers that all networks share: convolution, dense, normalisation.

Call `conv`, `dense` and `norm` inside a compact linen module. Each makes a submodule of
the given name, so that a leaf is called `conv1/kernel` or `fc1/bias`.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from sparsefl_jax.core.types import Array
from sparsefl_jax.core.validate import one_of
from sparsefl_jax.models import convolution
from sparsefl_jax.models.norm import STATIC_NAMES
from sparsefl_jax.models.pooling import max_pool as max_pool

# PyTorch's default kernel: U(-1 / sqrt(fan_in), 1 / sqrt(fan_in)).
torch_uniform = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def conv(
    x: Array,
    features: int,
    size: int,
    *,
    name: str,
    stride: int = 1,
    pad: int = 0,
    bias: bool = False,
    init: Callable = torch_uniform,
    bias_init: Callable | None = None,
    lowering: str = "auto",
) -> Array:
    """Applies a convolution [B, H, W, I] -> [B, h, w, features].

    Args:
      x: [B, H, W, I].
      features: the number of output channels.
      size: k, height and width of the kernel.
      name: the name of the submodule.
      stride, pad, lowering: as in `convolution.convolve`.
      bias: whether there is a bias.
      init: the kernel's initialiser.
      bias_init: the bias' initialiser; None for PyTorch's, U(-1 / sqrt(fan_in),
        1 / sqrt(fan_in)).
    """

    def convolve(x, kernel, *_, **__):
        return convolution.convolve(
            x, kernel, stride=stride, pad=pad, lowering=lowering
        )

    options = _options(bias, init, bias_init, size * size * x.shape[-1])
    options |= {"conv_general_dilated": convolve, "name": name}
    return _rounded(nn.Conv(features, (size, size), **options)(x), x)


def dense(
    x: Array,
    features: int,
    *,
    name: str,
    bias: bool = True,
    init: Callable = torch_uniform,
    bias_init: Callable | None = None,
) -> Array:
    """Applies a dense layer [B, I] -> [B, features]; arguments as in `conv`."""

    def dot_general(x, kernel, *_, **__):
        return _matmul(x, kernel)

    options = _options(bias, init, bias_init, x.shape[-1])
    options |= {"dot_general": dot_general, "name": name}
    return _rounded(nn.Dense(features, **options)(x), x)


def _options(bias, init, bias_init, fan_in):
    """Returns what convolutions and dense layers of linen have in common."""
    bias_init = bias_init or _torch_bias(fan_in)
    options = {"use_bias": bias, "kernel_init": init, "bias_init": bias_init}
    return options | {"promote_dtype": _promote}


def _promote(x, kernel, bias, dtype):
    """Promotes operands to one dtype, but the bias to f32: its gradient is a sum."""
    x, kernel = nn.dtypes.promote_dtype(x, kernel, dtype=dtype)
    return x, kernel, None if bias is None else bias.astype(jnp.float32)


def _rounded(y, x):
    """Casts y to the dtype of x after the bias was added, unless x holds integers."""
    return y.astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else y


@jax.custom_vjp
def _matmul(x: Array, kernel: Array) -> Array:
    return x @ kernel


def _matmul_forward(x, kernel):
    # Calling `_matmul` here would make jvp of grad fail. No kernel means no dx.
    residual = x.value, kernel.value if x.perturbed else None
    return x.value @ kernel.value, residual


def _matmul_backward(residual, g):
    x, kernel = residual
    if kernel is None:  # the network's input
        return jnp.zeros_like(x), x.T @ g
    dx = g @ kernel.T
    # This makes g @ kernel.T run first, so XLA can update the kernel in place.
    return dx, x.T @ (g + 0.0 * dx[0, 0])


_matmul.defvjp(_matmul_forward, _matmul_backward, symbolic_zeros=True)


def _torch_bias(fan_in: int):
    """Returns PyTorch's default bias initialiser, U(-fan_in**-0.5, fan_in**-0.5)."""
    bound = fan_in**-0.5

    def init(key, shape, dtype=jnp.float32):
        return nn.initializers.uniform(2 * bound)(key, shape, dtype) - bound

    return init


class BatchNorm(nn.Module):
    """Batch normalisation in one pass whose statistics leave out padded samples.

    Ioffe and Szegedy, ICML 2015, arXiv:1502.03167, with the constants of PyTorch. The
    running variance is the biased one.

    Attributes:
      momentum: the share of the running statistics that each step keeps.
      epsilon: the constant added to the variance.
      static: whether there are no running statistics (Diao et al., HeteroFL, ICLR
        2021). Training then returns the statistics of the batch, and
        `batch_statistics` averages them before an evaluation.
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
        groups, Wu and He 2018), or None, which returns x.
      name: the name of the submodule.
      train, weight: as in `BatchNorm`.

    Raises:
      ValueError: the kind is unknown.
    """
    one_of("norm", kind, ("batch", "static", "group", None))
    if kind is None:
        return x
    if kind == "group":
        return nn.GroupNorm(min(32, x.shape[-1]), epsilon=1e-5, name=name)(x)
    static = kind == "static"
    return BatchNorm(static=static, name=name)(x, train=train, weight=weight)
