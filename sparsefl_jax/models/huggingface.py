"""Reads the weights of a BERT or a DistilBERT from a folder, never from a network.

The folder holds `config.json` and `model.safetensors` as Hugging Face's libraries write
them: the encoder alone, or under a head for another task, whose weights are left.
"""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from sparsefl_jax.core.check import UserError, check, integer
from sparsefl_jax.core.extras import import_extra
from sparsefl_jax.core.types import PyTree

ACTIVATIONS = ("gelu", "relu")


class Sizes(NamedTuple):
    """The sizes of an encoder, and what else differs between networks of one form."""

    layers: int
    width: int
    heads: int
    hidden: int
    vocabulary: int
    positions: int
    texts: int = 0  # 0 if it does not distinguish the texts of a pair
    activation: str = "gelu"
    pooler: str = "tanh"
    epsilon: float = 1e-12


def check_sizes(sizes: Sizes) -> None:
    """Refuses sizes of which no encoder can be built.

    Raises:
      ValueError: one is below 1, or the heads do not divide the width.
    """
    for name in ("layers", "width", "heads", "hidden", "vocabulary", "positions"):
        check(name, getattr(sizes, name), integer(1))
    if sizes.width % sizes.heads:
        raise UserError(f"heads={sizes.heads}, expected to divide width={sizes.width}")


# The names of sizes in `config.json`, and of tensors by the names of our modules: those
# of a layer, and the others, of which those of a task may be absent.
_KINDS = ("bert", "distilbert")
_SIZES = {
    "layers": ("num_hidden_layers", "n_layers"),
    "width": ("hidden_size", "dim"),
    "heads": ("num_attention_heads", "n_heads"),
    "hidden": ("intermediate_size", "hidden_dim"),
    "vocabulary": ("vocab_size", "vocab_size"),
    "positions": ("max_position_embeddings", "max_position_embeddings"),
    "texts": ("type_vocab_size", None),
    "activation": ("hidden_act", "activation"),
    "epsilon": ("layer_norm_eps", None),
}
_LAYER = {
    "query": ("attention.self.query", "attention.q_lin"),
    "key": ("attention.self.key", "attention.k_lin"),
    "value": ("attention.self.value", "attention.v_lin"),
    "out": ("attention.output.dense", "attention.out_lin"),
    "norm1": ("attention.output.LayerNorm", "sa_layer_norm"),
    "up": ("intermediate.dense", "ffn.lin1"),
    "down": ("output.dense", "ffn.lin2"),
    "norm2": ("output.LayerNorm", "output_layer_norm"),
}
_WHOLE = {
    "embed/word": ("embeddings.word_embeddings", "embeddings.word_embeddings"),
    "embed/position": ("embeddings.position_embeddings",) * 2,
    "embed/norm": ("embeddings.LayerNorm", "embeddings.LayerNorm"),
    "embed/text": ("embeddings.token_type_embeddings", None),
    "pooler": ("pooler.dense", "pre_classifier"),
    "score": ("classifier", "classifier"),
}
_HEAD = ("pooler", "score")
_BEFORE_LAYER = {"bert": "encoder.layer.", "distilbert": "transformer.layer."}
_POOLERS = {"bert": "tanh", "distilbert": "relu"}
# What a configuration may say that would change the network, and what is read here.
_EXPECTED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "pad_token_id": 0,
}


def names(folder: str | Path) -> dict[str, str]:
    """Returns the names of a classifier's tensors in Hugging Face's libraries.

    Args:
      folder: see the module; only its `config.json` is read.

    Returns:
      Names without '.weight' or '.bias' by the path of our module, such as 'layer1/up'.
    """
    kind, sizes = read_config(folder)
    return _by_module(kind, sizes, f"{kind}.")


def _column(table: dict, kind: str) -> dict[str, str]:
    """Returns the names that a kind of network has in a table."""
    at = _KINDS.index(kind)
    return {ours: theirs[at] for ours, theirs in table.items() if theirs[at]}


def read_config(folder: str | Path) -> tuple[str, Sizes]:
    """Returns the kind of a network, 'bert' or 'distilbert', and its sizes.

    Args:
      folder: see the module; only its `config.json` is read.

    Raises:
      ValueError: the network is of another kind.
      OSError: there is no such file.
    """
    path = Path(folder) / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    kind = config.get("model_type")
    check("model_type", kind, _KINDS)
    for name, expected in _EXPECTED.items():
        if (value := config.get(name, expected)) != expected:
            raise UserError(f"{name}={value!r}, expected {expected!r}")
    config = {"layer_norm_eps": Sizes._field_defaults["epsilon"]} | config
    given = {k: config[name] for k, name in _column(_SIZES, kind).items()}
    sizes = Sizes(**given, pooler=_POOLERS[kind])
    check("activation", sizes.activation, ACTIVATIONS)
    check_sizes(sizes)
    return kind, sizes


def read_weights(
    folder: str | Path, kind: str, sizes: Sizes, shapes: PyTree
) -> dict[str, PyTree]:
    """Reads the weights of a network.

    Args:
      folder: see the module; its `model.safetensors` is read.
      kind, sizes: as `read_config` returns them.
      shapes: those of the network's parameters, nested dicts by our names.

    Returns:
      The parameters with our axes, nested dicts of float32, but those of `pooler` and
      `score` that the file does not hold in these shapes.

    Raises:
      ValueError: a tensor is missing or has another shape or values that are not
        finite, or safetensors is not installed.
    """
    safetensors = import_extra("safetensors.numpy", "text", "model.safetensors")
    tensors, stored = {}, safetensors.load_file(Path(folder) / "model.safetensors")
    for name, tensor in stored.items():
        # The first releases of BERT call the leaves of a normalisation gamma and beta.
        name = name.replace(".gamma", ".weight").replace(".beta", ".bias")
        tensors[name] = np.asarray(tensor, np.float32)
    begin = f"{kind}." if any(n.startswith(f"{kind}.") for n in tensors) else ""
    names, leaves = _by_module(kind, sizes, begin), {}
    for path, like in flatten_dict(shapes, sep="/").items():
        module, _, leaf = path.rpartition("/")
        name = f"{names[module]}.{'bias' if leaf == 'bias' else 'weight'}"
        found = tensors.get(name, np.zeros(()))
        found = found.T if leaf == "kernel" else found  # [out, in] there
        if not np.isfinite(found).all():
            raise UserError(f"tensor {name!r} has values that are not finite")
        if found.shape == like.shape:
            leaves[path] = found
        elif module not in _HEAD:
            wanted = f"{name!r} for {path!r} of shape {like.shape}"
            raise UserError(f"model.safetensors lacks a tensor {wanted}")
    return unflatten_dict(leaves, sep="/")


def _by_module(kind: str, sizes: Sizes, begin: str) -> dict[str, str]:
    """Returns the names of a network's tensors by module.

    `begin` stands before the encoder's tensors if a task's head is in the file.
    """
    found = {}
    for module, name in _column(_WHOLE, kind).items():
        # BERT's pooler stands inside, a task's head outside.
        found[module] = f"{begin if '.' in name else ''}{name}"
    for i in range(sizes.layers):
        before = f"{begin}{_BEFORE_LAYER[kind]}{i}."
        for module, name in _column(_LAYER, kind).items():
            found[f"layer{i + 1}/{module}"] = before + name
    return found
