"""Fully connected networks."""

import flax.linen as nn

from sparsefl_jax.models.base import Layers, Model, Widths, check_widths, model_of


def mlp(
    num_classes: int, input_shape: tuple[int, ...], *, widths: Widths = (128, 128)
) -> Model:
    """MLP 784-128-128-10 of FedSparsify (Stripelis et al. 2022), 118,282 parameters."""
    return _mlp(num_classes, input_shape, widths, nn.initializers.glorot_uniform())


def sa(
    num_classes: int, input_shape: tuple[int, ...], *, widths: Widths = (32,)
) -> Model:
    """Sentiment analyser of Complement Sparsification (AAAI 2023), 24,707 parameters.

    Its input is the 768 features of a text, see `data.tokens.hash_letters`.
    """
    return _mlp(num_classes, input_shape, widths, nn.initializers.he_uniform())


def _mlp(num_classes, input_shape, widths, init_fn):
    widths = check_widths(widths, len(widths))

    def network(x, train, weight):
        x = x.reshape(x.shape[0], -1)
        for i, width in enumerate(widths, 1):
            x = nn.relu(nn.Dense(width, kernel_init=init_fn, name=f"fc{i}")(x))
        name = f"fc{len(widths) + 1}"
        return nn.Dense(num_classes, kernel_init=init_fn, name=name)(x)

    return model_of(Layers(network), input_shape)
