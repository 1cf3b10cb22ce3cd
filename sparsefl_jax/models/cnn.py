"""Small convolutional networks, each named after the work that uses it.

A `Chain` describes a network: its convolutions, its hidden dense layers, and the steps
after each of them. Parameter counts in the docstrings hold for the data set of that
work and the default `widths`, the outputs of every layer but the last.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import flax.linen as nn

from sparsefl_jax.core.validate import in_range, one_of
from sparsefl_jax.models import layers
from sparsefl_jax.models.base import Model, check_widths, image_model

ZEROS = nn.initializers.zeros


class Chain(NamedTuple):
    """A chain of convolutions and then dense layers, given by the steps after each.

    The steps are 'relu'; 'pool', the maximum of disjoint 2x2 windows; 'slide', the
    maximum of 3x3 windows with stride 1; 'norm', the normalisation that the network is
    built with; 'keras_norm', batch normalisation with Keras' constants; and 'dropout'.
    """

    convs: tuple[tuple[str, ...], ...]  # the steps after each convolution
    hidden: tuple[tuple[str, ...], ...]  # the steps after each hidden dense layer
    size: int = 3  # height and width of the kernels
    pad: int = 0
    bias: bool = True
    init: Callable = layers.torch_uniform
    head_init: Callable | None = None  # None for `init`
    bias_init: Callable | None = None  # None for PyTorch's default


MNISTNET = Chain(2 * (("slide", "relu"),), (("relu",),), size=5)
LENET5_CAFFE = Chain(2 * (("relu", "pool"),), (("relu",),), size=5, bias=False)
CONV4 = Chain(
    2 * (("norm", "relu"), ("norm", "relu", "pool")),
    2 * (("norm", "relu"),),
    size=5,
    bias=False,
)
IC = Chain(
    (("relu", "pool"), ("relu",), ("relu", "pool")),
    (("relu",),),
    init=nn.initializers.he_uniform(),
    bias_init=ZEROS,
)
FEDSPARSIFY = Chain(
    2 * (("relu",), ("relu", "pool", "keras_norm")) + (("relu",), ("relu", "pool")),
    (("relu", "dropout"),),
    pad=1,
    init=nn.initializers.glorot_uniform(),
    bias_init=ZEROS,
)
FEMNIST = Chain(2 * (("relu", "pool"),), (("relu",),), size=5, pad=2)
SIMPLE = Chain((("relu",), ("relu", "pool")), (("relu",),))
SMALL = Chain(
    3 * (("relu", "pool"),),
    (("relu",),),
    pad=1,
    init=nn.initializers.he_normal(),
    # A small head keeps large learning rates from diverging at the start.
    head_init=nn.initializers.normal(0.01),
    bias_init=ZEROS,
)


class _Network(nn.Module):
    """The network of a `Chain`: conv1, ..., fc1, ..., with bn`i` after layer i."""

    chain: Chain
    num_classes: int
    widths: tuple[int, ...]
    norm: str | None = None
    dropout: float = 0.0
    softmax_output: bool = False

    @nn.compact
    def __call__(self, x, train, weight=None):
        chain, num_convs = self.chain, len(self.chain.convs)

        def options(fan_in, init=chain.init):
            bias_init = chain.bias_init or partial(layers.torch_bias, fan_in=fan_in)
            shared = {"use_bias": chain.bias, "bias_init": bias_init}
            return shared | {"kernel_init": init}

        stats = {"train": train, "weight": weight}
        step_fns = {
            "relu": lambda x, name: nn.relu(x),
            "pool": lambda x, name: nn.max_pool(x, (2, 2), (2, 2)),
            "slide": lambda x, name: nn.max_pool(x, (3, 3)),
            "norm": lambda x, name: layers.norm(x, self.norm, name=name, **stats),
            "keras_norm": lambda x, name: layers.BatchNorm(
                momentum=0.99, epsilon=1e-3, name=name
            )(x, **stats),
            "dropout": lambda x, name: nn.Dropout(
                self.dropout, deterministic=not train
            )(x),
        }
        steps = (*chain.convs, *chain.hidden)
        for i, (width, after) in enumerate(zip(self.widths, steps, strict=True), 1):
            if i <= num_convs:
                size, fan_in = (chain.size, chain.size), chain.size**2 * x.shape[-1]
                named = {"name": f"conv{i}", "padding": chain.pad, **options(fan_in)}
                x = nn.Conv(width, size, **named)(x)
            else:
                x = layers.not_empty(x).reshape(x.shape[0], -1)
                name = f"fc{i - num_convs}"
                x = nn.Dense(width, name=name, **options(x.shape[-1]))(x)
            for step in after:
                x = step_fns[step](x, f"bn{i}")
        name, init = f"fc{len(chain.hidden) + 1}", chain.head_init or chain.init
        head = options(x.shape[-1], init)
        x = nn.Dense(self.num_classes, name=name, **head)(x)
        return nn.softmax(x) if self.softmax_output else x


def _build(chain: Chain, num_classes, input_shape, widths, **options) -> Model:
    widths = check_widths(widths, len(chain.convs) + len(chain.hidden))
    module = _Network(chain, num_classes, widths, **options)
    return image_model(module, input_shape)


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
    shape = num_classes, input_shape, widths
    return _build(MNISTNET, *shape, softmax_output=softmax_output)


def lenet5_caffe(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    widths: tuple[int, ...] = (20, 50, 500),
) -> Model:
    """LeNet-5-Caffe of SpaFL (Kim et al. 2024), without biases, 430,500 parameters."""
    return _build(LENET5_CAFFE, num_classes, input_shape, widths)


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
    return _build(CONV4, num_classes, input_shape, widths, norm=norm)


def ic(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    widths: tuple[int, ...] = (32, 64, 64, 100),
) -> Model:
    """Image classifier of Complement Sparsification (AAAI 2023), 164,506 parameters."""
    return _build(IC, num_classes, input_shape, widths)


def fedsparsify_cnn(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    widths: tuple[int, ...] = (64, 64, 128, 128, 128, 128, 512),
    dropout: float = 0.2,
) -> Model:
    """CNN of FedSparsify (Stripelis et al. 2022) for CIFAR-10, 1,609,930 parameters."""
    in_range("dropout", dropout, "[0, 1)")
    return _build(FEDSPARSIFY, num_classes, input_shape, widths, dropout=dropout)


def femnist_cnn(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    widths: tuple[int, ...] = (32, 64, 2048),
) -> Model:
    """CNN of LEAF (Caldas et al. 2018) for FEMNIST, 6,603,710 parameters."""
    return _build(FEMNIST, num_classes, input_shape, widths)


def simple_cnn(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    widths: tuple[int, ...] = (32, 64, 128),
) -> Model:
    """CNN of pfl-research's CIFAR-10 benchmark (2024), 1,626,442 parameters."""
    return _build(SIMPLE, num_classes, input_shape, widths)


def small_cnn(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    widths: tuple[int, ...] = (16, 32, 64, 64),
) -> Model:
    """Small CNN for experiments that take seconds, 89,834 parameters."""
    return _build(SMALL, num_classes, input_shape, widths)
