"""Small convolutional networks, each named after the work that uses it.

Counts in the docstrings are for the data set of that work and the default `widths`,
the outputs of every layer but the last.
"""

from functools import partial

import flax.linen as nn

from sparsefl_jax.models.base import Model, check_widths, image_model
from sparsefl_jax.models.layers import BatchNorm, conv, dense, max_pool, norm

zeros = nn.initializers.zeros


class _MNISTNet(nn.Module):
    num_classes: int
    softmax_output: bool
    widths: tuple[int, ...]
    lowering: str

    @nn.compact
    def __call__(self, x):
        for i, width in enumerate(self.widths[:2], 1):
            x = conv(x, width, 5, name=f"conv{i}", bias=True, lowering=self.lowering)
            x = nn.relu(max_pool(x, 3, 1))
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(dense(x, self.widths[2], name="fc1"))
        x = dense(x, self.num_classes, name="fc2")
        return nn.softmax(x) if self.softmax_output else x


def mnistnet(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    softmax_output: bool = False,
    widths: tuple[int, ...] = (10, 20, 50),
    lowering: str = "auto",
) -> Model:
    """MNISTNet of FedDST (Bibikar et al. 2022) and FLASH, 261,840 parameters.

    With `softmax_output` the network ends in a softmax, so that cross-entropy applies a
    second one: what FLASH's official code does.
    """
    module = _MNISTNet(num_classes, softmax_output, check_widths(widths, 3), lowering)
    return image_model(module, input_shape)


class _LeNet5Caffe(nn.Module):
    num_classes: int
    widths: tuple[int, ...]
    lowering: str

    @nn.compact
    def __call__(self, x):
        for i, width in enumerate(self.widths[:2], 1):
            x = conv(x, width, 5, name=f"conv{i}", lowering=self.lowering)
            x = max_pool(nn.relu(x))
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(dense(x, self.widths[2], name="fc1", bias=False))
        return dense(x, self.num_classes, name="fc2", bias=False)


def lenet5_caffe(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    widths: tuple[int, ...] = (20, 50, 500),
    lowering: str = "auto",
) -> Model:
    """LeNet-5-Caffe of SpaFL (Kim et al. 2024), no biases, 430,500 parameters."""
    module = _LeNet5Caffe(num_classes, check_widths(widths, 3), lowering)
    return image_model(module, input_shape)


class _Conv4(nn.Module):
    num_classes: int
    norm: str | None
    widths: tuple[int, ...]
    lowering: str

    @nn.compact
    def __call__(self, x, train, weight=None):
        normalise = partial(norm, kind=self.norm, train=train, weight=weight)
        for i, width in enumerate(self.widths[:4], 1):
            x = conv(x, width, 5, name=f"conv{i}", lowering=self.lowering)
            x = nn.relu(normalise(x, name=f"bn{i}"))
            x = max_pool(x) if i % 2 == 0 else x
        x = x.reshape(x.shape[0], -1)
        for i, width in enumerate(self.widths[4:], 1):
            x = dense(x, width, name=f"fc{i}", bias=False)
            x = nn.relu(normalise(x, name=f"bn{i + 4}"))
        return dense(x, self.num_classes, name="fc3", bias=False)


def conv4(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    norm: str | None = "batch",
    widths: tuple[int, ...] = (64, 64, 128, 128, 128, 128),
    lowering: str = "auto",
) -> Model:
    """Conv4 of SpaFL (Kim et al. 2024), valid 5x5, no biases, 804,800 weights.

    `norm` is 'batch', 'static' or None; normalisation adds 1,280 parameters.
    """
    if norm not in ("batch", "static", None):
        raise ValueError(f"norm={norm!r} is not one of: 'batch', 'static', None")
    module = _Conv4(num_classes, norm, check_widths(widths, 6), lowering)
    return image_model(module, input_shape)


class _IC(nn.Module):
    num_classes: int
    widths: tuple[int, ...]
    lowering: str

    @nn.compact
    def __call__(self, x):
        init = {"init": nn.initializers.he_uniform(), "bias_init": zeros}
        for i, width in enumerate(self.widths[:3], 1):
            low = self.lowering
            x = conv(x, width, 3, name=f"conv{i}", bias=True, lowering=low, **init)
            x = nn.relu(x)
            x = x if i == 2 else max_pool(x)
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(dense(x, self.widths[3], name="fc1", **init))
        return dense(x, self.num_classes, name="fc2", **init)


def ic(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    widths: tuple[int, ...] = (32, 64, 64, 100),
    lowering: str = "auto",
) -> Model:
    """Image classifier of Complement Sparsification (AAAI 2023), 164,506 parameters."""
    module = _IC(num_classes, check_widths(widths, 4), lowering)
    return image_model(module, input_shape)


class _FedSparsify(nn.Module):
    num_classes: int
    widths: tuple[int, ...]
    dropout: float
    lowering: str

    @nn.compact
    def __call__(self, x, train, weight=None):
        init = {"init": nn.initializers.glorot_uniform(), "bias_init": zeros}
        for i, width in enumerate(self.widths[:6], 1):
            name, low = f"conv{i}", self.lowering
            x = conv(x, width, 3, name=name, pad=1, bias=True, lowering=low, **init)
            x = nn.relu(x)
            if i % 2:
                continue
            x = max_pool(x)
            if i < 6:  # Keras' constants
                normalise = BatchNorm(momentum=0.99, epsilon=1e-3, name=f"bn{i}")
                x = normalise(x, train=train, weight=weight)
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(dense(x, self.widths[6], name="fc1", **init))
        x = nn.Dropout(self.dropout, deterministic=not train)(x)
        return dense(x, self.num_classes, name="fc2", **init)


def fedsparsify_cnn(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    widths: tuple[int, ...] = (64, 64, 128, 128, 128, 128, 512),
    dropout: float = 0.2,
    lowering: str = "auto",
) -> Model:
    """CNN of FedSparsify (Stripelis et al. 2022) for CIFAR-10, 1,609,930 parameters."""
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout={dropout}, expected 0 <= dropout < 1")
    module = _FedSparsify(num_classes, check_widths(widths, 7), dropout, lowering)
    return image_model(module, input_shape)


class _FEMNIST(nn.Module):
    num_classes: int
    widths: tuple[int, ...]
    lowering: str

    @nn.compact
    def __call__(self, x):
        for i, width in enumerate(self.widths[:2], 1):
            low = self.lowering
            x = conv(x, width, 5, name=f"conv{i}", pad=2, bias=True, lowering=low)
            x = max_pool(nn.relu(x))
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(dense(x, self.widths[2], name="fc1"))
        return dense(x, self.num_classes, name="fc2")


def femnist_cnn(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    widths: tuple[int, ...] = (32, 64, 2048),
    lowering: str = "auto",
) -> Model:
    """CNN of LEAF (Caldas et al. 2018) for FEMNIST, 6,603,710 parameters."""
    module = _FEMNIST(num_classes, check_widths(widths, 3), lowering)
    return image_model(module, input_shape)


class _SimpleCNN(nn.Module):
    num_classes: int
    widths: tuple[int, ...]
    lowering: str

    @nn.compact
    def __call__(self, x):
        for i, width in enumerate(self.widths[:2], 1):
            low = self.lowering
            x = conv(x, width, 3, name=f"conv{i}", bias=True, lowering=low)
            x = nn.relu(x)
        x = max_pool(x).reshape(x.shape[0], -1)
        x = nn.relu(dense(x, self.widths[2], name="fc1"))
        return dense(x, self.num_classes, name="fc2")


def simple_cnn(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    widths: tuple[int, ...] = (32, 64, 128),
    lowering: str = "auto",
) -> Model:
    """CNN of pfl-research's CIFAR-10 benchmark (2024), 1,626,442 parameters."""
    module = _SimpleCNN(num_classes, check_widths(widths, 3), lowering)
    return image_model(module, input_shape)


class _SmallCNN(nn.Module):
    num_classes: int
    widths: tuple[int, ...]
    lowering: str

    @nn.compact
    def __call__(self, x):
        init = {"init": nn.initializers.he_normal(), "bias_init": zeros}
        for i, width in enumerate(self.widths[:3], 1):
            name, low = f"conv{i}", self.lowering
            x = conv(x, width, 3, name=name, pad=1, bias=True, lowering=low, **init)
            x = max_pool(nn.relu(x))
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(dense(x, self.widths[3], name="fc1", **init))
        # A small head keeps large learning rates from diverging at the start.
        init["init"] = nn.initializers.normal(0.01)
        return dense(x, self.num_classes, name="fc2", **init)


def small_cnn(
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    widths: tuple[int, ...] = (16, 32, 64, 64),
    lowering: str = "auto",
) -> Model:
    """Small CNN for trying things out in seconds, 89,834 parameters."""
    module = _SmallCNN(num_classes, check_widths(widths, 4), lowering)
    return image_model(module, input_shape)
