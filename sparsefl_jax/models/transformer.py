"""Transformer encoders that classify texts, from scratch or from a folder of weights.

An encoder reads tokens [T]. The first one stands for the whole text, and 0 is padding,
which no other token sees. As in BERT, a layer normalises after each residual sum.

Sources: Devlin et al., BERT, NAACL 2019, arXiv:1810.04805; Sanh et al., DistilBERT,
2019, arXiv:1910.01108.
"""

import math
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict

from sparsefl_jax.core.check import UserError, blame, check
from sparsefl_jax.core.types import Frozen, PyTree
from sparsefl_jax.models import adapters, huggingface
from sparsefl_jax.models.base import Model, model_of
from sparsefl_jax.models.huggingface import Sizes

PADDING = 0
PRETRAINED = "the pretrained network"
_FUNCTIONS = {
    "gelu": partial(nn.gelu, approximate=False),
    "relu": nn.relu,
    "tanh": nn.tanh,
}
_INIT = nn.initializers.normal(0.02)


def _dense(x, features, name):
    return nn.Dense(features, kernel_init=_INIT, name=name)(x)


def _norm(x, sizes, name):
    return nn.LayerNorm(sizes.epsilon, use_fast_variance=False, name=name)(x)


class _Embeddings(nn.Module):
    """Sums a vector of each token, of its place and of its text, [B, T, D]."""

    sizes: Sizes

    @nn.compact
    def __call__(self, x):
        def look_up(name, rows, places):
            width = self.sizes.width
            return nn.Embed(rows, width, embedding_init=_INIT, name=name)(places)

        total = look_up("word", self.sizes.vocabulary, x)
        places = jnp.arange(x.shape[1], dtype=jnp.int32)[None]
        total = total + look_up("position", self.sizes.positions, places)
        if self.sizes.texts:  # all tokens are of the first text
            total = total + look_up("text", self.sizes.texts, 0 * places)
        return _norm(total, self.sizes, "norm")


class _Layer(nn.Module):
    """Attention, then two dense layers for each token alone."""

    sizes: Sizes
    dropout: float

    @nn.compact
    def __call__(self, x, valid, train):
        sizes, drop = self.sizes, nn.Dropout(self.dropout, deterministic=not train)
        heads = (*x.shape[:2], sizes.heads, sizes.width // sizes.heads)
        query, key, value = (
            _dense(x, sizes.width, name).reshape(heads)
            for name in ("query", "key", "value")
        )
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / math.sqrt(heads[-1])
        # The lowest number, not -inf: a padded sample has no valid token at all.
        lowest = jnp.finfo(scores.dtype).min
        scores = jnp.where(valid[:, None, None], scores, lowest)
        shares = drop(nn.softmax(scores))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", shares, value).reshape(x.shape)
        x = _norm(x + drop(_dense(mixed, sizes.width, "out")), sizes, "norm1")
        hidden = _FUNCTIONS[sizes.activation](_dense(x, sizes.hidden, "up"))
        return _norm(x + drop(_dense(hidden, sizes.width, "down")), sizes, "norm2")


class _Encoder(nn.Module):
    """Reads tokens [B, T] and returns logits [B, C]."""

    sizes: Sizes
    num_classes: int
    dropout: float

    @nn.compact
    def __call__(self, x, train):
        drop = nn.Dropout(self.dropout, deterministic=not train)
        valid, x = x != PADDING, drop(_Embeddings(self.sizes, name="embed")(x))
        for i in range(1, self.sizes.layers + 1):
            x = _Layer(self.sizes, self.dropout, name=f"layer{i}")(x, valid, train)
        pooled = _dense(x[:, 0], self.sizes.width, "pooler")
        pooled = _FUNCTIONS[self.sizes.pooler](pooled)
        return _dense(drop(pooled), self.num_classes, "score")


def encoder(
    num_classes: int,
    input_shape: tuple[int, ...],
    *,
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    hidden: int = 128,
    vocabulary: int = 4096,
    dropout: float = 0.1,
) -> Model:
    """Builds an encoder of texts [T] with random weights, of BERT's form.

    Args:
      num_classes: classes of texts.
      input_shape: (T,).
      layers: number of layers.
      width: D, the length of a token's vector.
      heads: of the attention; they divide the width.
      hidden: units between the two dense layers of a layer.
      vocabulary: number of tokens.
      dropout: share of units dropped in training, also of the attention's.

    Raises:
      ValueError: a size is below 1, the heads do not divide the width, or `dropout` is
        out of range.

    Example:
      >>> model = encoder(2, (10,), layers=1)
      >>> model.macs["layer1"]["query"], model.macs["score"]
      ({'bias': 0, 'kernel': 40960}, {'bias': 0, 'kernel': 128})
    """
    sizes = Sizes(layers, width, heads, hidden, vocabulary, input_shape[0])
    huggingface.check_sizes(sizes)
    check("dropout", dropout, "[0, 1)")
    return model_of(_Encoder(sizes, num_classes, dropout), input_shape, jnp.int32)


def pretrained_encoder(
    num_classes: int,
    input_shape: tuple[int, ...],
    *,
    folder: str,
    frozen: bool = True,
    dropout: float = 0.1,
) -> Model:
    """Builds an encoder of texts [T] that starts from the weights of a folder.

    The weights of the last layer are random, unless the folder holds a classifier of
    as many classes; so are those of the layer before it, if the folder has none.

    Args:
      num_classes: classes of texts.
      input_shape: (T,), at most as many tokens as the network has positions.
      folder: a folder with `config.json` and `model.safetensors` of a BERT or a
        DistilBERT, as Hugging Face's libraries write it.
      frozen: whether the embeddings stay as they are. They are then no parameters:
        neither trained nor sent. Clients are assumed to hold them.
      dropout: share of units dropped in training, also of the attention's.

    Raises:
      ValueError: the folder holds no such network, texts are too long for it, or
        `dropout` is out of range.
    """
    check("dropout", dropout, "[0, 1)")
    expected = "expected config.json and model.safetensors of a BERT or a DistilBERT"
    with blame(f"{folder=} cannot be used, {expected}"):
        kind, sizes = huggingface.read_config(folder)
        module = _Encoder(sizes, num_classes, dropout)
        model = model_of(module, input_shape, jnp.int32)
        weights = huggingface.read_weights(folder, kind, sizes, model.shapes()[0])
    if input_shape[0] > sizes.positions:
        raise UserError(f"{input_shape=}, expected at most {sizes.positions} tokens")
    model = _starting_from(model, weights)._replace(frozen=Frozen(source=PRETRAINED))
    if not frozen:
        return model
    embeddings = flatten_dict({"embed": weights["embed"]}, sep="/")
    return adapters.freeze_weights(model, embeddings, PRETRAINED)


def _starting_from(model: Model, weights: dict[str, PyTree]) -> Model:
    """Returns the model whose `init` has these weights instead of random ones."""

    @jax.jit  # which draws no weight that is not returned
    def others(key):
        params, stats = model.init(key)
        return {k: v for k, v in params.items() if k not in weights}, stats

    def init(key):
        params, stats = others(key)
        return params | jax.tree.map(jnp.asarray, weights), stats

    return model._replace(init=init)
