"""The networks of `linen.py`, in `flax.nnx` as its guides write it."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

max_pool = partial(nnx.max_pool, window_shape=(2, 2), strides=(2, 2))


class SimpleCNN(nnx.Module):
    """The network of the package's `simple_cnn`."""

    def __init__(self, *, rngs: nnx.Rngs):
        self.conv1 = nnx.Conv(3, 32, (3, 3), padding="VALID", rngs=rngs)
        self.conv2 = nnx.Conv(32, 64, (3, 3), padding="VALID", rngs=rngs)
        self.fc1 = nnx.Linear(12544, 128, rngs=rngs)
        self.fc2 = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.conv2(nnx.relu(self.conv1(x))))
        x = max_pool(x)
        return self.fc2(nnx.relu(self.fc1(x.reshape(len(x), -1))))


class StridedCNN(nnx.Module):
    """Strides in place of pools, and the mean of all pixels before the last layer."""

    def __init__(self, *, rngs: nnx.Rngs):
        conv = partial(nnx.Conv, kernel_size=(3, 3), strides=2, padding=1, rngs=rngs)
        convs = conv(3, 16), nnx.relu, conv(16, 32), nnx.relu, conv(32, 64), nnx.relu
        self.convs, self.fc = nnx.Sequential(*convs), nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        return self.fc(self.convs(x).mean((1, 2)))


class GroupNormCNN(nnx.Module):
    """Three convolutions, each with GroupNorm and a pool."""

    def __init__(self, *, rngs: nnx.Rngs):
        layers = []
        for inputs, features in ((3, 16), (16, 32), (32, 64)):
            layers += [nnx.Conv(inputs, features, (3, 3), rngs=rngs)]
            layers += [nnx.GroupNorm(features, 8, rngs=rngs), nnx.relu, max_pool]
        self.convs = nnx.Sequential(*layers)
        self.fc1 = nnx.Linear(1024, 64, rngs=rngs)
        self.fc2 = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        x = self.convs(x)
        return self.fc2(nnx.relu(self.fc1(x.reshape(len(x), -1))))


class ResNetBlock(nnx.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, inputs: int, features: int, *, rngs: nnx.Rngs):
        conv = partial(nnx.Conv, use_bias=False, rngs=rngs)
        norm = partial(nnx.GroupNorm, features, 32, rngs=rngs)
        stride = 1 if inputs == features else 2
        self.conv1 = conv(inputs, features, (3, 3), stride, padding=1)
        self.conv2 = conv(features, features, (3, 3), padding=1)
        self.norm1, self.norm2 = norm(), norm()
        self.changes = inputs != features
        if self.changes:
            self.shortcut = conv(inputs, features, (1, 1), stride)
            self.norm3 = norm()

    def __call__(self, x):
        y = self.conv2(nnx.relu(self.norm1(self.conv1(x))))
        x = self.norm3(self.shortcut(x)) if self.changes else x
        return nnx.relu(x + self.norm2(y))


class ResNet18(nnx.Module):
    """ResNet-18 for CIFAR-10 with GroupNorm."""

    def __init__(self, *, rngs: nnx.Rngs):
        self.stem = nnx.Conv(3, 64, (3, 3), padding=1, use_bias=False, rngs=rngs)
        self.norm = nnx.GroupNorm(64, 32, rngs=rngs)
        widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
        pairs = zip(widths, widths[1:], strict=False)
        self.blocks = nnx.List([ResNetBlock(a, b, rngs=rngs) for a, b in pairs])
        self.fc = nnx.Linear(512, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return self.fc(x.mean((1, 2)))


class Separable(nnx.Module):
    """A depthwise convolution and one of all channels at a pixel."""

    def __init__(self, inputs: int, features: int, stride: int, *, rngs: nnx.Rngs):
        options = {"padding": 1, "feature_group_count": inputs, "rngs": rngs}
        self.depthwise = nnx.Conv(inputs, inputs, (3, 3), stride, **options)
        self.pointwise = nnx.Conv(inputs, features, (1, 1), rngs=rngs)

    def __call__(self, x):
        return nnx.relu(self.pointwise(nnx.relu(self.depthwise(x))))


class SeparableCNN(nnx.Module):
    """Depthwise separable convolutions."""

    def __init__(self, *, rngs: nnx.Rngs):
        self.stem = nnx.Conv(3, 32, (3, 3), padding=1, rngs=rngs)
        self.block1 = Separable(32, 64, 1, rngs=rngs)
        self.block2 = Separable(64, 128, 2, rngs=rngs)
        self.block3 = Separable(128, 128, 1, rngs=rngs)
        self.fc = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, x):
        x = self.block1(nnx.relu(self.stem(x)))
        return self.fc(self.block3(self.block2(x)).mean((1, 2)))


class GRU(nnx.Module):
    """A GRU over the rows of an image, and a layer on its last state."""

    def __init__(self, *, rngs: nnx.Rngs):
        self.rnn = nnx.RNN(nnx.GRUCell(96, 128, rngs=rngs), rngs=rngs)
        self.fc = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, x):
        return self.fc(self.rnn(x.reshape(*x.shape[:2], -1))[:, -1])


class TransformerBlock(nnx.Module):
    """Attention of four heads and two dense layers, normalised before."""

    def __init__(self, *, rngs: nnx.Rngs):
        self.norm1, self.norm2 = (nnx.LayerNorm(64, rngs=rngs) for _ in range(2))
        self.attention = nnx.MultiHeadAttention(4, 64, decode=False, rngs=rngs)
        self.fc1 = nnx.Linear(64, 256, rngs=rngs)
        self.fc2 = nnx.Linear(256, 64, rngs=rngs)

    def __call__(self, x):
        x += self.attention(self.norm1(x))
        return x + self.fc2(nnx.gelu(self.fc1(self.norm2(x))))


class Transformer(nnx.Module):
    """Two blocks over the 4x4 patches of an image."""

    def __init__(self, *, rngs: nnx.Rngs):
        self.patches = nnx.Conv(3, 64, (4, 4), strides=4, rngs=rngs)
        start = 0.02 * jax.random.normal(rngs.params(), (64, 64))
        self.positions = nnx.Param(start)
        self.block1, self.block2 = (TransformerBlock(rngs=rngs) for _ in range(2))
        self.norm = nnx.LayerNorm(64, rngs=rngs)
        self.fc = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        x = self.patches(x)
        x = x.reshape(len(x), -1, 64) + self.positions[...]
        return self.fc(jnp.mean(self.norm(self.block2(self.block1(x))), axis=1))
