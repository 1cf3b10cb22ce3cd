"""FedAvg whose model and updates travel with few bits a value.

The dense control of a comparison at equal bits: every entry travels, both ways, with 16
or fewer bits. Rounding up or down at random keeps the mean of an update, as in QSGD
(Alistarh et al., NeurIPS 2017, https://arxiv.org/abs/1610.02132), with the largest
entry of a leaf for its norm.
"""

import jax
import jax.numpy as jnp
import optax

from sparsefl_jax.algorithms.compressed import compressed
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import Array, Key, PyTree
from sparsefl_jax.models.base import Model
from sparsefl_jax.training import means
from sparsefl_jax.wire.compressors import Compressor
from sparsefl_jax.wire.packets import Message, Packet


@method
def quantized(
    model: Model,
    optimizer: Optimizer,
    *,
    bits: int = 8,
    server_optimizer: optax.GradientTransformation | None = None,
    keep_optimizer: bool = False,
    weighting: means.Weighting = "examples",
) -> Algorithm:
    """FedAvg with 16 or fewer bits a value in both directions.

    Down: the model, rounded, to every client, which trains from what it decodes. Up:
    the change from there, rounded so that its mean stays. Both: 32 bits a leaf for its
    largest magnitude, unless bits=16; normalisation statistics, float32. The server's
    model is dense and float32, and so are training and evaluation.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it.
      bits: of a value: 16, a float16, or 2 to 8, of which one is the sign.
      server_optimizer: an optax optimizer that takes the negated mean for a gradient;
        None adds the mean.
      keep_optimizer: clients keep their optimizer's state between rounds.
      weighting: a client's weight in the mean, see `means.WEIGHTINGS`.

    Raises:
      ValueError: an argument is out of range.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = quantized(model, optimizer, bits=16)
    """
    if bits not in (16, *range(2, 9)):
        raise UserError(f"bits={bits!r}, expected 16 or 2 to 8")
    whole, unbiased = rounding(bits, False), rounding(bits, True)
    shared = {"keep_optimizer": keep_optimizer, "weighting": weighting}
    shared |= {"server_optimizer": server_optimizer}
    averaging = compressed(model, optimizer, up=unbiased, **shared)

    def broadcast(key, ctx, server):
        return whole.encode(key, server.params) | {"stats": Packet(server.stats)}

    def update(key, ctx, downlink, client, batches):
        params = Packet(whole.decode(downlink))
        received = {"params": params, "stats": downlink["stats"]}
        return averaging.update(key, ctx, received, client, batches)

    return averaging.replace(broadcast=broadcast, update=update)


def rounding(bits: int, unbiased: bool) -> Compressor:
    """Returns the compressor to float16, or to multiples of a leaf's largest magnitude.

    With 2 to 8 bits the multiples are k / (2^(bits - 1) - 1) for whole k. It takes n
    bits, and 32 a leaf for the magnitude unless bits=16.

    Args:
      bits: of a value: 16, or 2 to 8.
      unbiased: whether a value between two levels goes up with the probability that
        keeps its mean, or to the nearest; a float16 is always the nearest.

    Example:
      >>> message = rounding(3, False).encode(None, {'w': jnp.array([3., -1.4, 0.6])})
      >>> message['delta'].values['w'].tolist(), message['scale'].values['w'].item()
      ([3, -1, 1], 3.0)
    """
    levels = jnp.float32(2 ** (bits - 1) - 1)

    def one(key: Key, leaf: Array, scale: Array) -> Array:
        level = leaf * (levels / jnp.where(scale > 0, scale, jnp.ones_like(scale)))
        shift = jax.random.uniform(key, leaf.shape) if unbiased else 0.5
        return jnp.clip(jnp.floor(level + shift), -levels, levels).astype(jnp.int8)

    def encode(key: Key, values: PyTree) -> Message:
        scale = jax.tree.map(lambda v: jnp.max(jnp.abs(v), initial=0), values)
        keys = optax.tree.split_key_like(key, values) if unbiased else scale
        level = jax.tree.map(one, keys, values, scale)
        return {"delta": Packet(level, bits=bits), "scale": Packet(scale)}

    def decode(message: Message) -> PyTree:
        level, scale = message["delta"].values, message["scale"].values
        return jax.tree.map(lambda q, s: q * (s / levels), level, scale)

    def encode_halves(key: Key, values: PyTree) -> Message:
        return {"delta": Packet(optax.tree.cast(values, jnp.float16), bits=16)}

    def decode_halves(message: Message) -> PyTree:
        return optax.tree.cast(message["delta"].values, jnp.float32)

    both = (encode_halves, decode_halves) if bits == 16 else (encode, decode)
    return Compressor(*both, feedback="none")
