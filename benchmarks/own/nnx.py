"""Some networks of `linen.py`, in `flax.nnx` as its guides write it."""

import jax
import jax.numpy as jnp
from flax import nnx


class SimpleCNN(nnx.Module):
    """The network of the package's `simple_cnn`."""

    def __init__(self, *, rngs: nnx.Rngs):
        self.conv1 = nnx.Conv(3, 32, (3, 3), padding="VALID", rngs=rngs)
        self.conv2 = nnx.Conv(32, 64, (3, 3), padding="VALID", rngs=rngs)
        self.fc1 = nnx.Linear(12544, 128, rngs=rngs)
        self.fc2 = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.conv2(nnx.relu(self.conv1(x))))
        x = nnx.max_pool(x, (2, 2), strides=(2, 2))
        return self.fc2(nnx.relu(self.fc1(x.reshape(len(x), -1))))


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


NETWORKS = {
    "simple_cnn": SimpleCNN,
    "gru": GRU,
    "transformer": Transformer,
}
