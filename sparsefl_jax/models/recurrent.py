"""Recurrent networks, which read tokens."""

import flax.linen as nn

from sparsefl_jax.core.validate import at_least
from sparsefl_jax.models.base import Model, sequence_model


class _CharGRU(nn.Module):
    num_classes: int
    embedding: int
    units: int

    @nn.compact
    def __call__(self, x):
        x = nn.Embed(self.num_classes, self.embedding, name="embed")(x)
        x = nn.RNN(nn.GRUCell(self.units, name="gru"), name="rnn")(x)
        return nn.Dense(self.num_classes, name="head")(x)


def char_gru(
    num_classes: int,
    input_shape: tuple[int, ...],
    *,
    embedding: int = 16,
    units: int = 96,
) -> Model:
    """GRU over characters [T]; logits of the next one after each of them, [T, C].

    Args:
      num_classes: characters of the alphabet, read and predicted.
      input_shape: (T,).
      embedding: length of a character's vector.
      units: of the recurrent layer.
    """
    at_least("embedding", embedding, 1)
    at_least("units", units, 1)
    return sequence_model(_CharGRU(num_classes, embedding, units), input_shape)
