"""Recurrent networks, which read tokens."""

import flax.linen as nn
import jax.numpy as jnp

from sparsefl_jax.core.check import check
from sparsefl_jax.models.base import Layers, Model, model_of


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
    check("embedding", embedding, "[1, inf)")
    check("units", units, "[1, inf)")

    def network(x, train, weight):
        x = nn.Embed(num_classes, embedding, name="embed")(x)
        x = nn.RNN(nn.GRUCell(units, name="gru"), name="rnn")(x)
        return nn.Dense(num_classes, name="head")(x)

    return model_of(Layers(network), input_shape, jnp.int32)
