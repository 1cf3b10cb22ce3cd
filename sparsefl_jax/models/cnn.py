"""Small convolutional networks, each named after the work that uses it.

Parameter counts in the docstrings hold for the data set of that work and the default
`widths`, the outputs of every layer but the last.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
from flax.linen.initializers import glorot_uniform, he_normal, he_uniform, normal

from sparsefl_jax.core.check import UserError, check
from sparsefl_jax.core.types import Array
from sparsefl_jax.models import layers
from sparsefl_jax.models.base import Layers, Model, Widths, check_widths, model_of

Image = tuple[int, int, int]  # height, width, channels


def _torch(fan_in: int) -> dict:
    """Returns the options of a layer whose weights are drawn as PyTorch does."""
    bias_init = partial(layers.torch_bias, fan_in=fan_in)
    return {"kernel_init": layers.torch_uniform, "bias_init": bias_init}


def _initializers(init: Callable, **options: Any) -> Callable:
    """Returns the options of layers whose kernels are drawn otherwise."""
    return lambda fan_in: {"kernel_init": init} | options


def _pool(x: Array) -> Array:
    return nn.max_pool(x, (2, 2), (2, 2))


def _not_empty(x: Array) -> Array:
    if 0 in x.shape:
        raise UserError("input_shape smaller than a kernel or a pool, expected larger")
    return x


def _flat(x: Array) -> Array:
    return _not_empty(x).reshape(len(x), -1)


def _cnn(input_shape, widths, size, pad, pooled, draw=_torch, head=None, dropout=0.0):
    """Builds convolutions with ReLU, some of them pooled, and two dense layers.

    `dropout` precedes the last layer, and half of it the other dense layer.
    """
    *convolutions, dense, num_classes = widths

    def network(x, train, weight):
        for i, width in enumerate(convolutions, 1):
            options = draw(size**2 * x.shape[-1])
            options |= {"padding": pad, "name": f"conv{i}"}
            x = nn.relu(nn.Conv(width, (size, size), **options)(x))
            x = _pool(x) if i in pooled else x
        x = _flat(nn.Dropout(dropout / 2, deterministic=not train)(x))
        x = nn.relu(nn.Dense(dense, name="fc1", **draw(x.shape[-1]))(x))
        x = nn.Dropout(dropout, deterministic=not train)(x)
        last = draw(dense) | ({"kernel_init": head} if head else {})
        return nn.Dense(num_classes, name="fc2", **last)(x)

    return model_of(Layers(network), input_shape)


def mnistnet(
    num_classes: int,
    input_shape: Image,
    *,
    softmax_output: bool = False,
    widths: Widths = (10, 20, 50),
) -> Model:
    """MNISTNet of FedDST (Bibikar et al. 2022) and FLASH, 261,840 parameters.

    With `softmax_output` the network ends in a softmax, so cross-entropy applies a
    second one, as FLASH's official code does.
    """
    *convolutions, dense = check_widths(widths, 3)

    def network(x, train, weight):
        for i, width in enumerate(convolutions, 1):
            options = {"padding": 0, "name": f"conv{i}"} | _torch(25 * x.shape[-1])
            x = nn.Conv(width, (5, 5), **options)(x)
            x = nn.relu(nn.max_pool(x, (3, 3)))
        x = _flat(x)
        x = nn.relu(nn.Dense(dense, name="fc1", **_torch(x.shape[-1]))(x))
        x = nn.Dense(num_classes, name="fc2", **_torch(x.shape[-1]))(x)
        return nn.softmax(x) if softmax_output else x

    return model_of(Layers(network), input_shape)


def lenet5_caffe(
    num_classes: int, input_shape: Image, *, widths: Widths = (20, 50, 500)
) -> Model:
    """LeNet-5-Caffe of SpaFL (Kim et al. 2024), without biases, 430,500 parameters."""
    widths = (*check_widths(widths, 3), num_classes)
    options = _initializers(layers.torch_uniform, use_bias=False)
    return _cnn(input_shape, widths, 5, 0, (1, 2), options)


def conv4(
    num_classes: int,
    input_shape: Image,
    *,
    norm: str | None = "batch",
    widths: Widths = (64, 64, 128, 128, 128, 128),
) -> Model:
    """Conv4 of SpaFL (Kim et al. 2024), valid 5x5, without biases, 806,080 parameters.

    `norm` is 'batch', 'static', 'group' or None, which has 804,800 parameters.

    Raises:
      ValueError: `norm` is none of these, or `widths` does not fit.
    """
    widths = check_widths(widths, 6)
    options = {"use_bias": False, "kernel_init": layers.torch_uniform}

    def network(x, train, weight):
        for i, width in enumerate(widths, 1):
            if i <= 4:
                conv = nn.Conv(width, (5, 5), padding=0, name=f"conv{i}", **options)
                x = conv(x)
            else:
                x = nn.Dense(width, name=f"fc{i - 4}", **options)(_flat(x))
            x = layers.norm(x, norm, name=f"bn{i}", train=train, weight=weight)
            x = _pool(nn.relu(x)) if i in (2, 4) else nn.relu(x)
        return nn.Dense(num_classes, name="fc3", **options)(x)

    return model_of(Layers(network), input_shape)


def ic(
    num_classes: int, input_shape: Image, *, widths: Widths = (32, 64, 64, 100)
) -> Model:
    """Image classifier of Complement Sparsification (AAAI 2023), 164,506 parameters."""
    widths = (*check_widths(widths, 4), num_classes)
    return _cnn(input_shape, widths, 3, 0, (1, 3), _initializers(he_uniform()))


def fedsparsify_cnn(
    num_classes: int,
    input_shape: Image,
    *,
    widths: Widths = (64, 64, 128, 128, 128, 128, 512),
    dropout: float = 0.2,
) -> Model:
    """CNN of FedSparsify (Stripelis et al. 2022) for CIFAR-10, 1,609,930 parameters."""
    check("dropout", dropout, "[0, 1)")
    *convolutions, dense = check_widths(widths, 7)
    options = {"kernel_init": glorot_uniform()}

    def network(x, train, weight):
        for i, width in enumerate(convolutions, 1):
            conv = nn.Conv(width, (3, 3), padding=1, name=f"conv{i}", **options)
            x = nn.relu(conv(x))
            x = _pool(x) if i in (2, 4, 6) else x
            if i in (2, 4):  # with the constants of Keras
                norm = layers.BatchNorm(momentum=0.99, epsilon=1e-3, name=f"bn{i}")
                x = norm(x, train=train, weight=weight)
        x = nn.relu(nn.Dense(dense, name="fc1", **options)(_flat(x)))
        x = nn.Dropout(dropout, deterministic=not train)(x)
        return nn.Dense(num_classes, name="fc2", **options)(x)

    return model_of(Layers(network), input_shape)


def femnist_cnn(
    num_classes: int, input_shape: Image, *, widths: Widths = (32, 64, 2048)
) -> Model:
    """CNN of LEAF (Caldas et al. 2018) for FEMNIST, 6,603,710 parameters."""
    return _cnn(input_shape, (*check_widths(widths, 3), num_classes), 5, 2, (1, 2))


def simple_cnn(
    num_classes: int,
    input_shape: Image,
    *,
    widths: Widths = (32, 64, 128),
    dropout: float = 0.0,
) -> Model:
    """CNN of pfl-research's CIFAR-10 benchmark (2024), 1,626,442 parameters.

    With `dropout=0.5`, which drops half of the last layer's inputs and a quarter of
    those of `fc1`, it is the CNN of Reddi et al. (ICLR 2021) for the 62 classes of
    EMNIST, 1,206,590 parameters, but for the initial weights, which are PyTorch's.
    """
    check("dropout", dropout, "[0, 1)")
    widths = (*check_widths(widths, 3), num_classes)
    return _cnn(input_shape, widths, 3, 0, (2,), dropout=dropout)


def small_cnn(
    num_classes: int, input_shape: Image, *, widths: Widths = (16, 32, 64, 64)
) -> Model:
    """Small CNN for experiments that take seconds, 89,834 parameters."""
    widths = (*check_widths(widths, 4), num_classes)
    options = _initializers(he_normal())
    # A small head keeps large learning rates from diverging at the start.
    return _cnn(input_shape, widths, 3, 1, (1, 2, 3), options, normal(0.01))


def vgg16(
    num_classes: int,
    input_shape: Image,
    *,
    norm: str | None = "batch",
    widths: Widths = (64, 64, 128, 128) + 3 * (256,) + 6 * (512,),
) -> Model:
    """VGG-16 with one linear head and no convolution biases, 14,724,042 parameters.

    Simonyan and Zisserman, arXiv:1409.1556. `norm` is 'batch', 'static', 'group' or
    None.

    Raises:
      ValueError: `norm` is none of these, or `widths` are not 13 positive numbers.
    """
    widths = check_widths(widths, 13)

    def network(x, train, weight):
        options = {"use_bias": False, "kernel_init": layers.torch_uniform}
        for i, width in enumerate(widths, 1):
            x = nn.Conv(width, (3, 3), padding=1, name=f"conv{i}", **options)(x)
            x = layers.norm(x, norm, name=f"bn{i}", train=train, weight=weight)
            x = nn.relu(x)
            x = _pool(x) if i in (2, 4, 7, 10, 13) else x
        x = _not_empty(x).mean((1, 2))
        return nn.Dense(num_classes, name="fc", **_torch(x.shape[-1]))(x)

    return model_of(Layers(network), input_shape)
