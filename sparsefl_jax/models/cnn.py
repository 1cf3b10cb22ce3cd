"""Small convolutional networks, each named after the work that uses it.

Parameter counts in the docstrings hold for the data set of that work and the default
`widths`, the outputs of every layer but the last.
"""

from functools import partial

import flax.linen as nn

from sparsefl_jax.core.types import Array
from sparsefl_jax.core.validate import in_range, one_of
from sparsefl_jax.models.base import Model, check_widths, image_model
from sparsefl_jax.models.layers import (
    BatchNorm,
    norm,
    not_empty,
    torch_bias,
    torch_uniform,
)


def _torch_conv(x: Array, width: int, name: str, size: int, pad: int = 0) -> Array:
    """Convolves with weights drawn as PyTorch does by default."""
    bias_init = partial(torch_bias, fan_in=size**2 * x.shape[-1])
    options = {"kernel_init": torch_uniform, "bias_init": bias_init, "name": name}
    return nn.Conv(width, (size, size), padding=pad, **options)(x)


def _torch_dense(x: Array, width: int, name: str) -> Array:
    bias_init = partial(torch_bias, fan_in=x.shape[-1])
    options = {"kernel_init": torch_uniform, "bias_init": bias_init, "name": name}
    return nn.Dense(width, **options)(x)


def _pool(x: Array) -> Array:
    return nn.max_pool(x, (2, 2), (2, 2))


def _flat(x: Array) -> Array:
    return not_empty(x).reshape(len(x), -1)


class _MNISTNet(nn.Module):
    num_classes: int
    widths: tuple[int, ...]
    softmax_output: bool

    @nn.compact
    def __call__(self, x):
        for i, width in enumerate(self.widths[:2], 1):
            x = _torch_conv(x, width, f"conv{i}", 5)
            x = nn.relu(nn.max_pool(x, (3, 3)))
        x = nn.relu(_torch_dense(_flat(x), self.widths[2], "fc1"))
        x = _torch_dense(x, self.num_classes, "fc2")
        return nn.softmax(x) if self.softmax_output else x


class _LeNet5Caffe(nn.Module):
    num_classes: int
    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x):
        options = {"use_bias": False, "kernel_init": torch_uniform}
        for i, width in enumerate(self.widths[:2], 1):
            conv = nn.Conv(width, (5, 5), padding=0, name=f"conv{i}", **options)
            x = _pool(nn.relu(conv(x)))
        x = nn.relu(nn.Dense(self.widths[2], name="fc1", **options)(_flat(x)))
        return nn.Dense(self.num_classes, name="fc2", **options)(x)


class _Conv4(nn.Module):
    num_classes: int
    widths: tuple[int, ...]
    norm: str | None

    @nn.compact
    def __call__(self, x, train, weight=None):
        options = {"use_bias": False, "kernel_init": torch_uniform}

        def norm_relu(x, name):
            return nn.relu(norm(x, self.norm, name=name, train=train, weight=weight))

        for i, width in enumerate(self.widths[:4], 1):
            conv = nn.Conv(width, (5, 5), padding=0, name=f"conv{i}", **options)
            x = norm_relu(conv(x), f"bn{i}")
            x = _pool(x) if i in (2, 4) else x
        x = _flat(x)
        for i, width in enumerate(self.widths[4:], 1):
            x = nn.Dense(width, name=f"fc{i}", **options)(x)
            x = norm_relu(x, f"bn{4 + i}")
        return nn.Dense(self.num_classes, name="fc3", **options)(x)


class _IC(nn.Module):
    num_classes: int
    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x):
        options = {"kernel_init": nn.initializers.he_uniform()}
        for i, width in enumerate(self.widths[:3], 1):
            conv = nn.Conv(width, (3, 3), padding=0, name=f"conv{i}", **options)
            x = nn.relu(conv(x))
            x = _pool(x) if i in (1, 3) else x
        x = nn.relu(nn.Dense(self.widths[3], name="fc1", **options)(_flat(x)))
        return nn.Dense(self.num_classes, name="fc2", **options)(x)


class _FedSparsifyCNN(nn.Module):
    num_classes: int
    widths: tuple[int, ...]
    dropout: float

    @nn.compact
    def __call__(self, x, train, weight=None):
        options = {"kernel_init": nn.initializers.glorot_uniform()}
        for i, width in enumerate(self.widths[:6], 1):
            conv = nn.Conv(width, (3, 3), padding=1, name=f"conv{i}", **options)
            x = nn.relu(conv(x))
            x = _pool(x) if i in (2, 4, 6) else x
            if i in (2, 4):  # with the constants of Keras
                keras_norm = BatchNorm(momentum=0.99, epsilon=1e-3, name=f"bn{i}")
                x = keras_norm(x, train=train, weight=weight)
        x = nn.relu(nn.Dense(self.widths[6], name="fc1", **options)(_flat(x)))
        x = nn.Dropout(self.dropout, deterministic=not train)(x)
        return nn.Dense(self.num_classes, name="fc2", **options)(x)


class _FEMNISTCNN(nn.Module):
    num_classes: int
    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x):
        for i, width in enumerate(self.widths[:2], 1):
            x = _pool(nn.relu(_torch_conv(x, width, f"conv{i}", 5, pad=2)))
        x = nn.relu(_torch_dense(_flat(x), self.widths[2], "fc1"))
        return _torch_dense(x, self.num_classes, "fc2")


class _SimpleCNN(nn.Module):
    num_classes: int
    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x):
        x = nn.relu(_torch_conv(x, self.widths[0], "conv1", 3))
        x = _pool(nn.relu(_torch_conv(x, self.widths[1], "conv2", 3)))
        x = nn.relu(_torch_dense(_flat(x), self.widths[2], "fc1"))
        return _torch_dense(x, self.num_classes, "fc2")


class _SmallCNN(nn.Module):
    num_classes: int
    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x):
        options = {"kernel_init": nn.initializers.he_normal()}
        for i, width in enumerate(self.widths[:3], 1):
            conv = nn.Conv(width, (3, 3), padding=1, name=f"conv{i}", **options)
            x = _pool(nn.relu(conv(x)))
        x = nn.relu(nn.Dense(self.widths[3], name="fc1", **options)(_flat(x)))
        # A small head keeps large learning rates from diverging at the start.
        head_init = nn.initializers.normal(0.01)
        return nn.Dense(self.num_classes, kernel_init=head_init, name="fc2")(x)


def mnistnet(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    softmax_output: bool = False,
    widths: tuple[int, ...] = (10, 20, 50),
) -> Model:
    """MNISTNet of FedDST (Bibikar et al. 2022) and FLASH, 261,840 parameters.

    With `softmax_output` the network ends in a softmax, so cross-entropy applies a
    second one, as FLASH's official code does.
    """
    module = _MNISTNet(num_classes, check_widths(widths, 3), softmax_output)
    return image_model(module, input_shape)


def lenet5_caffe(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    widths: tuple[int, ...] = (20, 50, 500),
) -> Model:
    """LeNet-5-Caffe of SpaFL (Kim et al. 2024), without biases, 430,500 parameters."""
    module = _LeNet5Caffe(num_classes, check_widths(widths, 3))
    return image_model(module, input_shape)


def conv4(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    norm: str | None = "batch",
    widths: tuple[int, ...] = (64, 64, 128, 128, 128, 128),
) -> Model:
    """Conv4 of SpaFL (Kim et al. 2024), valid 5x5, without biases, 804,800 weights.

    `norm` is 'batch', 'static' or None; normalisation adds 1,280 parameters.

    Raises:
      ValueError: `norm` is none of these, or `widths` does not fit.
    """
    one_of("norm", norm, ("batch", "static", None))
    module = _Conv4(num_classes, check_widths(widths, 6), norm)
    return image_model(module, input_shape)


def ic(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    widths: tuple[int, ...] = (32, 64, 64, 100),
) -> Model:
    """Image classifier of Complement Sparsification (AAAI 2023), 164,506 parameters."""
    module = _IC(num_classes, check_widths(widths, 4))
    return image_model(module, input_shape)


def fedsparsify_cnn(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    widths: tuple[int, ...] = (64, 64, 128, 128, 128, 128, 512),
    dropout: float = 0.2,
) -> Model:
    """CNN of FedSparsify (Stripelis et al. 2022) for CIFAR-10, 1,609,930 parameters."""
    in_range("dropout", dropout, "[0, 1)")
    module = _FedSparsifyCNN(num_classes, check_widths(widths, 7), dropout)
    return image_model(module, input_shape)


def femnist_cnn(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    widths: tuple[int, ...] = (32, 64, 2048),
) -> Model:
    """CNN of LEAF (Caldas et al. 2018) for FEMNIST, 6,603,710 parameters."""
    module = _FEMNISTCNN(num_classes, check_widths(widths, 3))
    return image_model(module, input_shape)


def simple_cnn(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    widths: tuple[int, ...] = (32, 64, 128),
) -> Model:
    """CNN of pfl-research's CIFAR-10 benchmark (2024), 1,626,442 parameters."""
    module = _SimpleCNN(num_classes, check_widths(widths, 3))
    return image_model(module, input_shape)


def small_cnn(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    widths: tuple[int, ...] = (16, 32, 64, 64),
) -> Model:
    """Small CNN for experiments that take seconds, 89,834 parameters."""
    module = _SmallCNN(num_classes, check_widths(widths, 4))
    return image_model(module, input_shape)
