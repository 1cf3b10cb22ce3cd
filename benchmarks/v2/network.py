"""The convolutional network of the CIFAR-10 workload, as a user of Flax writes it."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from sparsefl_jax import Model
from sparsefl_jax.models.layers import GroupNorm


class CNN(nn.Module):
    """Three convolutions, each with GroupNorm and a pool, and two dense layers."""

    num_classes: int
    channels: int

    @nn.compact
    def __call__(self, x):
        """Returns logits [B, num_classes] of images [B, H, W, 3]."""
        for times in (1, 2, 4):
            features = times * self.channels
            x = nn.Conv(features, (3, 3), use_bias=False)(x)
            x = nn.relu(GroupNorm(math.gcd(8, features))(x))
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = nn.relu(nn.Dense(4 * self.channels)(x.reshape(len(x), -1)))
        return nn.Dense(self.num_classes)(x)


def cnn(num_classes: int, input_shape: tuple[int, ...], *, channels: int = 16) -> Model:
    """Returns the network: 89,946 parameters for ten classes of CIFAR-10's images.

    Args:
      num_classes: the outputs of the last layer.
      input_shape: of an image, (32, 32, 3).
      channels: of the first convolution; all other widths are multiples of it.
    """
    sample = jax.ShapeDtypeStruct((1, *input_shape), jnp.float32)
    return Model.from_flax(CNN(num_classes, channels), sample)
