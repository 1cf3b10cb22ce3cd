"""Two networks of `linen.py`, in `flax.nnx` as its guides write it."""

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


NETWORKS = {
    "simple_cnn": SimpleCNN,
    "gru": GRU,
}
