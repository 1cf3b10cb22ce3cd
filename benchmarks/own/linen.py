"""Networks that a user of Flax may bring, in `flax.linen` as its guides write it."""

import flax.linen as nn
import jax.numpy as jnp


class SimpleCNN(nn.Module):
    """The network of the package's `simple_cnn`."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(32, (3, 3), padding="VALID")(x))
        x = nn.relu(nn.Conv(64, (3, 3), padding="VALID")(x))
        x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = nn.relu(nn.Dense(128)(x.reshape(len(x), -1)))
        return nn.Dense(10)(x)


class ResNetBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    features: int
    stride: int

    @nn.compact
    def __call__(self, x):
        y = nn.Conv(self.features, (3, 3), self.stride, padding=1, use_bias=False)(x)
        y = nn.relu(nn.GroupNorm(32)(y))
        y = nn.Conv(self.features, (3, 3), padding=1, use_bias=False)(y)
        y = nn.GroupNorm(32)(y)
        if x.shape != y.shape:
            x = nn.Conv(self.features, (1, 1), self.stride, use_bias=False)(x)
            x = nn.GroupNorm(32)(x)
        return nn.relu(x + y)


class ResNet18(nn.Module):
    """ResNet-18 for CIFAR-10 with GroupNorm, the package's `resnet18` of that norm."""

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(64, (3, 3), padding=1, use_bias=False)(x)
        x = nn.relu(nn.GroupNorm(32)(x))
        for features in (64, 128, 256, 512):
            x = ResNetBlock(features, 1 if features == 64 else 2)(x)
            x = ResNetBlock(features, 1)(x)
        return nn.Dense(10)(x.mean((1, 2)))


class SeparableCNN(nn.Module):
    """Depthwise separable convolutions."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(32, (3, 3), padding=1)(x))
        for features, stride in ((64, 1), (128, 2), (128, 1)):
            groups = x.shape[-1]
            depthwise = nn.Conv(
                groups, (3, 3), stride, padding=1, feature_group_count=groups
            )
            x = nn.relu(depthwise(x))
            x = nn.relu(nn.Conv(features, (1, 1))(x))
        return nn.Dense(10)(x.mean((1, 2)))


class GRU(nn.Module):
    """A GRU over the rows of an image, and a layer on its last state."""

    @nn.compact
    def __call__(self, x):
        x = nn.RNN(nn.GRUCell(128))(x.reshape(*x.shape[:2], -1))
        return nn.Dense(10)(x[:, -1])


class TransformerBlock(nn.Module):
    """Attention of four heads and two dense layers, normalised before."""

    @nn.compact
    def __call__(self, x):
        x += nn.MultiHeadDotProductAttention(num_heads=4)(nn.LayerNorm()(x))
        y = nn.gelu(nn.Dense(256)(nn.LayerNorm()(x)))
        return x + nn.Dense(64)(y)


class Transformer(nn.Module):
    """Two blocks over the 4x4 patches of an image."""

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(64, (4, 4), strides=4)(x)
        x = x.reshape(len(x), -1, 64)
        x += self.param("positions", nn.initializers.normal(0.02), x.shape[1:])
        for _ in range(2):
            x = TransformerBlock()(x)
        return nn.Dense(10)(jnp.mean(nn.LayerNorm()(x), axis=1))


NETWORKS = {
    "simple_cnn": SimpleCNN,
    "resnet18_groupnorm": ResNet18,
    "separable_cnn": SeparableCNN,
    "gru": GRU,
    "transformer": Transformer,
}
