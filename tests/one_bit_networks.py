"""The networks of FedMRN's and FedBAT's released code, whose uplinks are counted."""

import flax.linen as nn

from sparsefl_jax.models.base import Model, image_model
from sparsefl_jax.models.layers import norm


def conv_norm(x, width, name, train, size=3, stride=1):
    options = {"strides": stride, "use_bias": False, "name": name}
    x = nn.Conv(width, (size, size), **options)(x)
    return norm(x, "batch", name=f"{name}_bn", train=train)


class _CNN(nn.Module):
    num_classes: int
    depth: int  # convolutions of each width

    @nn.compact
    def __call__(self, x, train, weight=None):
        for width in (32, 64, 128, 256):
            for i in range(self.depth):
                x = nn.relu(conv_norm(x, width, f"conv{width}_{i}", train))
            x = nn.max_pool(x, (2, 2), (2, 2))
        x = x.reshape(len(x), -1)
        return nn.Dense(self.num_classes, use_bias=False, name="fc")(x)


class _ResNet10(nn.Module):
    num_classes: int

    @nn.compact
    def __call__(self, x, train, weight=None):
        x = nn.relu(conv_norm(x, 64, "conv1", train))
        for stage, width in enumerate((64, 128, 256, 512)):
            name, stride = f"layer{stage}", 1 if stage == 0 else 2
            y = nn.relu(conv_norm(x, width, f"{name}_conv1", train, stride=stride))
            y = conv_norm(y, width, f"{name}_conv2", train)
            if stage:
                x = conv_norm(x, width, f"{name}_shortcut", train, 1, stride)
            x = nn.relu(x + y)
        x = x.mean((1, 2))
        return nn.Dense(self.num_classes, use_bias=False, name="fc")(x)


def cnn(num_classes: int, input_shape: tuple[int, int, int], *, depth: int) -> Model:
    """CNN4 with a `depth` of 1, CNN8 with 2."""
    return image_model(_CNN(num_classes, depth), input_shape)


def resnet10(num_classes: int, input_shape: tuple[int, int, int]) -> Model:
    """ResNet-10: a block a stage, 1x1 shortcuts."""
    return image_model(_ResNet10(num_classes), input_shape)
