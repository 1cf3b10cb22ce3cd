"""Compressors: an update as packets, and what their receiver makes of them.

Their names and papers::

    topk      the k largest of all entries: Stich et al., NeurIPS 2018,
              https://arxiv.org/abs/1809.07599; with few bits each: Sarfi et al.,
              "SparseLoCo", 2025, https://arxiv.org/abs/2508.15706
    randomk   k entries at positions that both ends draw from one seed: the same paper
    qsgd      levels by stochastic rounding: Alistarh et al., NeurIPS 2017,
              https://arxiv.org/abs/1610.02132
    sign      signs and a scale per leaf: Karimireddy et al., ICML 2019,
              https://arxiv.org/abs/1901.09847
    majority  signs, of which the server takes the majority: Bernstein et al., ICML
              2018, https://arxiv.org/abs/1802.04434
    stc       the largest entries of each leaf, as signs and one magnitude: Sattler et
              al., TNNLS 2019, https://arxiv.org/abs/1903.02891
    none      everything, float32

`decode` uses only what travels, and what both ends draw from a key. An update of
zeros decodes to zeros, but for `majority`.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import optax

from sparsefl_jax.core.check import check, check_arguments, integer
from sparsefl_jax.core.types import Array, PyTree, Share
from sparsefl_jax.sparsity import layer_densities, masks, one_bit, top_k, trees
from sparsefl_jax.wire.packets import Message, Packet
from sparsefl_jax.wire.positions import Index

Feedback = Literal["ef", "ef21", "none"]
Scope = Literal["global", "leaf"]
Rounding = Literal["nearest", "unbiased"]
_plus_minus = partial(one_bit.levels, lowest=-1.0)


class Compressor(NamedTuple):
    """How an update travels.

    Attributes:
      encode: `(key, update) -> message`, packets by name, of which one is `'delta'`.
      decode: `(message) -> update`, float32; further packets do not matter.
      combine: `(key, mean) -> update`, on the server: what it makes of the mean of the
        decoded updates of a cohort.
      shared: whether the key of `encode` is one that the server has sent, the same for
        all clients of a round. A key of `encode` is a client's own otherwise.
      feedback: what clients remember by default, see `compressed`.
      votes: whether clients have one vote each, and `combine` returns their majority.
    """

    encode: Callable
    decode: Callable
    combine: Callable = lambda key, mean: mean
    shared: bool = False
    feedback: Feedback = "ef"
    votes: bool = False


def none() -> Compressor:
    """Returns the compressor that changes nothing: 32 bits an entry."""
    return Compressor(
        lambda key, update: {"delta": Packet(update)},
        lambda message: message["delta"].values,
    )


@check_arguments
def topk(
    density: Share = 0.01,
    scope: Scope = "global",
    index: Index = "packed",
    bits: int = 32,
    rounding: Rounding = "nearest",
) -> Compressor:
    """Returns the compressor that sends exactly k = ceil(n density) entries.

    Takes k (`bits` + bits of a position), and 64 a leaf if bits < 32. An entry is then
    its sign and one of 2^(bits - 1) magnitudes, evenly spaced from the least to the
    largest that travel in its leaf; no zero travels. No entry is further from the
    nearest magnitude than from 0.

    Args:
      density: share of the entries that travel, in (0, 1].
      scope: the n entries among which the largest are sought: 'global', or each 'leaf'.
      index: how positions are written, see `packets.Packet`.
      bits: of a value: 32, or 2 to 8, of which one is the sign.
      rounding: with fewer than 32 bits, to the 'nearest' magnitude, or 'unbiased': up
        with the probability that keeps the mean.

    Raises:
      ValueError: an argument is not as above.

    Example:
      >>> method = topk(0.25)
      >>> message = method.encode(None, {'w': jnp.array([1., -3., 2., 0.])})
      >>> method.decode(message)['w'].tolist()
      [0.0, -3.0, 0.0, 0.0]
      >>> method = topk(0.75, bits=2)
      >>> message = method.encode(None, {'w': jnp.array([1., -3., 2.2, 0.])})
      >>> method.decode(message)['w'].tolist()
      [1.0, -3.0, 3.0, 0.0]
    """
    check("bits", bits, (*range(2, 9), 32))
    check("rounding", rounding, ("nearest",) if bits == 32 else get_args(Rounding))
    levels, unbiased = jnp.float32(2 ** (bits - 1) - 1), rounding == "unbiased"

    def encode(key, update):
        size = jax.tree.map(jnp.abs, update)
        mask = _keep_largest(size, density, scope == "leaf")
        return {"delta": Packet(masks.apply(update, mask), mask, index=index)}

    def one(key, leaf, mask):
        size = jnp.abs(leaf)
        most = jnp.max(size, initial=0)
        least = jnp.min(size, where=mask, initial=most)
        # Of so few digits that its multiples are exact: both ends decode the same.
        step = jax.lax.reduce_precision((most - least) / levels, 8, 16)
        level = (size - least) / jnp.where(step > 0, step, jnp.ones_like(step))
        shift = jax.random.uniform(key, leaf.shape) if unbiased else 0.5
        level = jnp.clip(jnp.floor(level + shift), 0, levels).astype(jnp.int8)
        return jnp.where(leaf < 0, ~level, level), jnp.stack([least, step])

    def encode_levels(key, update):
        delta = encode(key, update)["delta"]
        mask = jax.tree.map(lambda m, v: m & (v != 0), delta.mask, delta.values)
        keys = optax.tree.split_key_like(key, update) if unbiased else mask
        pairs = jax.tree.map(one, keys, delta.values, mask)
        level, scale = jax.tree.transpose(jax.tree.structure(update), None, pairs)
        delta = Packet(level, mask, bits=bits, index=index)
        return {"delta": delta, "scale": Packet(scale)}

    def back(code, scale):
        level = jnp.where(code < 0, ~code, code).astype(jnp.float32)
        size = scale[0] + level * scale[1]
        return jnp.where(code < 0, -size, size)

    def decode_levels(message):
        return masks.apply(_with_scale(back, message), message["delta"].mask)

    whole = encode, none().decode
    return Compressor(*whole if bits == 32 else (encode_levels, decode_levels))


def randomk(density: float = 0.01, unbiased: bool = False) -> Compressor:
    """Returns the compressor that sends entries at random positions.

    All clients of a round draw the same k = ceil(n density) positions from the server's
    seed. Takes 32 k.

    Args:
      density: share of all entries that travel, in (0, 1].
      unbiased: whether `decode` multiplies by n / k, so that the mean over positions is
        the update; not with error feedback, which sends the others later.

    Raises:
      ValueError: an argument is not as above.
    """
    check("density", density, "(0, 1]")

    def encode(key, update):
        scores = masks.uniform_scores(key, update, masks.select_all(update))
        mask = _keep_largest(scores, density, False)
        return {"delta": Packet(masks.apply(update, mask), mask, index="none")}

    def decode(message):
        values = message["delta"].values
        size = trees.num_entries(values)
        kept = layer_densities.whole_up(density, size)
        factor = jnp.float32(size / kept if unbiased else 1.0)
        return jax.tree.map(lambda v: v * factor, values)

    feedback = "none" if unbiased else "ef"
    return Compressor(encode, decode, shared=True, feedback=feedback)


def qsgd(bits: int = 4, bucket: int = 0) -> Compressor:
    """Returns the compressor that rounds |x| / norm to s = 2^(bits - 1) - 1 levels.

    A value between two levels goes up with the probability that keeps its mean. Takes n
    bits + 32 a norm.

    Args:
      bits: of a level with its sign, 2 to 8.
      bucket: entries that share an L2 norm; 0 for those of a leaf.

    Raises:
      ValueError: an argument is not as above.

    Example:
      >>> message = qsgd(3).encode(jax.random.key(0), jnp.eye(8))
      >>> message['delta'].bits, message['delta'].values[0, :2].tolist()
      (3, [1, 0])
    """
    check("bits", bits, integer(2, 8))
    check("bucket", bucket, integer(0))
    levels = jnp.float32(2 ** (bits - 1) - 1)

    def one(key, leaf):
        rows = _rows(leaf, bucket)
        norm = jnp.sqrt(jnp.sum(rows * rows, 1))
        safe = jnp.where(norm > 0, norm, jnp.ones_like(norm))
        level = levels * (jnp.abs(rows) / safe[:, None])
        level = jnp.floor(level + jax.random.uniform(key, rows.shape))
        level = jnp.sign(rows) * jnp.minimum(level, levels)
        level = level.reshape(-1)[: leaf.size].reshape(leaf.shape)
        return level.astype(jnp.int8), norm

    def encode(key, update):
        pairs = jax.tree.map(one, optax.tree.split_key_like(key, update), update)
        level, norm = jax.tree.transpose(jax.tree.structure(update), None, pairs)
        return {"delta": Packet(level, bits=bits), "scale": Packet(norm)}

    def back(level, norm):
        rows = _rows(level.astype(jnp.float32), bucket) * (norm[:, None] / levels)
        return rows.reshape(-1)[: level.size].reshape(level.shape)

    return Compressor(encode, partial(_with_scale, back), feedback="none")


def sign() -> Compressor:
    """Returns the compressor to signs, 0 counting as +, and the mean |x| of a leaf.

    Takes n + 32 a leaf.

    Example:
      >>> message = sign().encode(None, {'w': jnp.array([1., -3., 2., 0.])})
      >>> sign().decode(message)['w'].tolist()
      [1.5, -1.5, 1.5, 1.5]
    """

    def encode(key, update):
        scale = jax.tree.map(lambda v: jnp.mean(jnp.abs(v)), update)
        return {"delta": Packet(_signs(update), bits=1), "scale": Packet(scale)}

    return Compressor(encode, partial(_with_scale, lambda bit, s: s * _plus_minus(bit)))


def majority() -> Compressor:
    """Returns the compressor to signs, of which the server takes the majority.

    Takes n. The server sees no more than the sum of the signs; where it is 0, the
    server decides at random, because a bit has no third value.
    """

    def encode(key, update):
        return {"delta": Packet(_signs(update), bits=1)}

    def decode(message):
        return jax.tree.map(_plus_minus, message["delta"].values)

    def combine(key, mean):
        coins = masks.uniform_scores(key, mean, masks.select_all(mean))
        return jax.tree.map(
            lambda m, c: jnp.where(m == 0, jnp.sign(c - 0.5), jnp.sign(m)), mean, coins
        )

    return Compressor(encode, decode, combine, feedback="none", votes=True)


@check_arguments
def stc(density: Share = 0.01, index: Index = "packed") -> Compressor:
    """Returns sparse ternary compression: a leaf's largest entries by sign and mean.

    Of each leaf, the k = ceil(n density) largest entries travel, or fewer if fewer are
    not 0. Takes k (1 + bits of a position) + 32 a leaf.

    Args:
      density: share of the entries of a leaf that travel, in (0, 1].
      index: how positions are written, see `packets.Packet`; STC's own is 'golomb'.

    Raises:
      ValueError: an argument is not as above.

    Example:
      >>> method = stc(0.5)
      >>> message = method.encode(None, {'w': jnp.array([1., -3., 2., 0.])})
      >>> method.decode(message)['w'].tolist()
      [0.0, -2.5, 2.5, 0.0]
    """

    def encode(key, update):
        size = jax.tree.map(jnp.abs, update)
        mask = _keep_largest(size, density, True)
        mask = jax.tree.map(lambda m, s: m & (s > 0), mask, size)
        scale = jax.tree.map(_mean_inside, size, mask)
        bits = masks.apply(_signs(update), mask)
        delta = Packet(bits, mask, bits=1, index=index)
        return {"delta": delta, "scale": Packet(scale)}

    def decode(message):
        return masks.apply(sign().decode(message), message["delta"].mask)

    return Compressor(encode, decode)


COMPRESSORS = {
    make.__name__: make for make in (topk, randomk, qsgd, sign, majority, stc, none)
}


def build(name: str, given: dict[str, Any]) -> Compressor:
    """Builds a compressor from the given arguments that it takes.

    Args:
      name: one of `COMPRESSORS`.
      given: arguments by name; None leaves an argument at its default.

    Example:
      >>> build('stc', {'density': 0.1, 'bits': None}).shared
      False
    """
    given = {k: v for k, v in given.items() if v is not None and reads(name, k)}
    return COMPRESSORS[name](**given)


def reads(name: str, argument: str) -> bool:
    """Returns whether a compressor, one of `COMPRESSORS`, takes an argument.

    Example:
      >>> reads('qsgd', 'bits'), reads('sign', 'bits')
      (True, False)
    """
    return argument in inspect.signature(COMPRESSORS[name]).parameters


def _keep_largest(scores: PyTree, density: float, by_leaf: bool) -> PyTree:
    """Keeps exactly the share of largest scores, of each leaf or of all together."""
    select = masks.select_all(scores)
    sizes = trees.layer_sizes(scores, select)
    if not by_leaf:  # static branch
        count = layer_densities.whole_up(density, sizes.sum())
        return top_k.largest_overall(scores, count, select)
    return top_k.keep_top(scores, layer_densities.whole_up(density, sizes), select)


def _rows(leaf: Array, bucket: int) -> Array:
    """Returns the entries in rows of a bucket, the last filled up with zeros."""
    width = bucket or max(leaf.size, 1)
    flat = leaf.reshape(-1)
    return jnp.pad(flat, (0, -flat.size % width)).reshape(-1, width)


def _signs(update: PyTree) -> PyTree:
    """Returns 1 where an entry is at least 0, otherwise 0; uint8."""
    return jax.tree.map(lambda v: (v >= 0).astype(jnp.uint8), update)


def _mean_inside(size: Array, mask: Array) -> Array:
    count = jnp.maximum(jnp.sum(mask, dtype=jnp.float32), 1)
    return jnp.sum(jnp.where(mask, size, jnp.zeros_like(size))) / count


def _with_scale(function: Callable, message: Message) -> PyTree:
    """Maps over the codes and scales of a message's leaves."""
    return jax.tree.map(function, message["delta"].values, message["scale"].values)
