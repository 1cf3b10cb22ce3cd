"""Fully connected networks."""

from collections.abc import Callable

import flax.linen as nn

from sparsefl_jax.models.base import Model, check_widths, image_model


class _MLP(nn.Module):
    num_classes: int
    widths: tuple[int, ...]
    init_fn: Callable

    @nn.compact
    def __call__(self, x):
        x = x.reshape(x.shape[0], -1)
        *hidden, last = (
            nn.Dense(width, kernel_init=self.init_fn, name=f"fc{i}")
            for i, width in enumerate((*self.widths, self.num_classes), 1)
        )
        for layer in hidden:
            x = nn.relu(layer(x))
        return last(x)


def mlp(
    num_classes: int,
    input_shape: tuple[int, ...],
    *,
    widths: tuple[int, ...] = (128, 128),
) -> Model:
    """MLP 784-128-128-10 of FedSparsify (Stripelis et al. 2022), 118,282 parameters."""
    return _mlp(num_classes, input_shape, widths, nn.initializers.glorot_uniform())


def sa(
    num_classes: int,
    input_shape: tuple[int, ...],
    *,
    widths: tuple[int, ...] = (32,),
) -> Model:
    """Sentiment analyser of Complement Sparsification (AAAI 2023), 24,707 parameters.

    Its input is the 768 features of a text, see `data.tokens.hashing`.
    """
    return _mlp(num_classes, input_shape, widths, nn.initializers.he_uniform())


def _mlp(num_classes, input_shape, widths, init_fn):
    widths = check_widths(widths, len(widths))
    return image_model(_MLP(num_classes, widths, init_fn), input_shape)
