"""Reads the weights of a BERT or a DistilBERT from a folder, never from a network.

The folder holds `config.json` and `model.safetensors` as Hugging Face's libraries write
them: the encoder alone, or under a head for another task, whose weights are left.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import unflatten_dict

from sparsefl_jax.core.extras import imported
from sparsefl_jax.core.types import PyTree
from sparsefl_jax.core.validate import blaming, one_of

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


class _Family(NamedTuple):
    """How one kind of network names its sizes in `config.json`, and its tensors.

    In `layer`, from the names of our modules to those of a layer's tensors. In `whole`,
    the same outside of the layers; those in `head` may be absent.
    """

    sizes: dict[str, str]
    fixed: dict[str, Any]
    begin: str  # before the encoder's tensors, if a task's head is in the file
    before_layer: str
    layer: dict[str, str]
    whole: dict[str, str]
    head: dict[str, str]


_EMBED = {
    "embed/word": "embeddings.word_embeddings",
    "embed/position": "embeddings.position_embeddings",
    "embed/norm": "embeddings.LayerNorm",
}
_FAMILIES = {
    "bert": _Family(
        sizes={
            "layers": "num_hidden_layers",
            "width": "hidden_size",
            "heads": "num_attention_heads",
            "hidden": "intermediate_size",
            "vocabulary": "vocab_size",
            "positions": "max_position_embeddings",
            "texts": "type_vocab_size",
            "activation": "hidden_act",
            "epsilon": "layer_norm_eps",
        },
        fixed={"pooler": "tanh"},
        begin="bert.",
        before_layer="encoder.layer.",
        layer={
            "query": "attention.self.query",
            "key": "attention.self.key",
            "value": "attention.self.value",
            "out": "attention.output.dense",
            "norm1": "attention.output.LayerNorm",
            "up": "intermediate.dense",
            "down": "output.dense",
            "norm2": "output.LayerNorm",
        },
        whole=_EMBED | {"embed/text": "embeddings.token_type_embeddings"},
        head={"pooler": "pooler.dense", "score": "classifier"},
    ),
    "distilbert": _Family(
        sizes={
            "layers": "n_layers",
            "width": "dim",
            "heads": "n_heads",
            "hidden": "hidden_dim",
            "vocabulary": "vocab_size",
            "positions": "max_position_embeddings",
            "activation": "activation",
        },
        fixed={"pooler": "relu"},
        begin="distilbert.",
        before_layer="transformer.layer.",
        layer={
            "query": "attention.q_lin",
            "key": "attention.k_lin",
            "value": "attention.v_lin",
            "out": "attention.out_lin",
            "norm1": "sa_layer_norm",
            "up": "ffn.lin1",
            "down": "ffn.lin2",
            "norm2": "output_layer_norm",
        },
        whole=_EMBED,
        head={"pooler": "pre_classifier", "score": "classifier"},
    ),
}
# What a configuration may say that would change the network, and what is read here.
_EXPECTED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "pad_token_id": 0,
}


def read(folder: str | Path) -> tuple[Sizes, dict[str, PyTree]]:
    """Reads an encoder.

    Args:
      folder: see the module.

    Returns:
      `(sizes, weights)`: the parameters `embed`, `layer1`, ..., and those of `pooler`
      and `score` that the file holds, as nested dicts of float32.

    Raises:
      ValueError: the folder lacks a file, its network is of another kind, a tensor is
        missing or has another shape, or safetensors is not installed.
    """
    folder = Path(folder)
    with blaming(f"folder={str(folder)!r} cannot be used"):
        family, sizes = _read_config(folder / "config.json")
        return sizes, _named(_read_tensors(folder), family, sizes)


def names(folder: str | Path) -> dict[str, str]:
    """Returns the names of a classifier's tensors in Hugging Face's libraries.

    Args:
      folder: see the module; only its `config.json` is read.

    Returns:
      Names without '.weight' or '.bias' by the path of our module, such as 'layer1/up'.
    """
    family, sizes = _read_config(Path(folder) / "config.json")
    return _by_module(family, sizes, family.begin)


def _read_config(path: Path) -> tuple[_Family, Sizes]:
    """Returns the kind of a network and its sizes."""
    config = json.loads(path.read_text(encoding="utf-8"))
    one_of("model_type", config.get("model_type"), _FAMILIES)
    family = _FAMILIES[config["model_type"]]
    for name, expected in _EXPECTED.items():
        if (value := config.get(name, expected)) != expected:
            raise ValueError(f"{name}={value!r}, expected {expected!r}")
    if missing := sorted(set(family.sizes.values()) - set(config) - {"layer_norm_eps"}):
        raise ValueError(f"config.json lacks {', '.join(missing)}")
    given = {k: config[name] for k, name in family.sizes.items() if name in config}
    sizes = Sizes(**given, **family.fixed)
    one_of("activation", sizes.activation, ACTIVATIONS)
    for name in ("layers", "width", "heads", "hidden", "vocabulary", "positions"):
        if not isinstance(size := getattr(sizes, name), int) or size < 1:
            raise ValueError(f"{family.sizes[name]}={size!r}, expected at least 1")
    if sizes.width % sizes.heads:
        raise ValueError(f"{sizes.heads} heads do not divide the width {sizes.width}")
    return family, sizes


def _read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """Returns the tensors of a folder as float32, by name."""
    safetensors = imported("safetensors.numpy", "text", "model.safetensors")
    tensors = safetensors.load_file(folder / "model.safetensors")
    # The first releases of BERT call the leaves of a normalisation gamma and beta.
    old = {".gamma": ".weight", ".beta": ".bias"}
    found = {}
    for name, tensor in tensors.items():
        for end, new in old.items():
            name = name.removesuffix(end) + new if name.endswith(end) else name
        found[name] = np.asarray(tensor, np.float32)
    return found


def _named(tensors, family: _Family, sizes: Sizes) -> dict[str, PyTree]:
    """Returns the tensors under the names of our modules, with our axes."""
    begin = family.begin if any(n.startswith(family.begin) for n in tensors) else ""
    leaves = {
        module: _leaves(tensors, name, module, sizes)
        for module, name in _by_module(family, sizes, begin).items()
        if module not in family.head or f"{name}.weight" in tensors
    }
    return unflatten_dict(leaves, sep="/")


def _by_module(family: _Family, sizes: Sizes, begin: str) -> dict[str, str]:
    """Returns the names of a network's tensors by module."""
    found = {module: begin + name for module, name in family.whole.items()}
    for i in range(sizes.layers):
        for module, name in family.layer.items():
            found[f"layer{i + 1}/{module}"] = f"{begin}{family.before_layer}{i}.{name}"
    for module, name in family.head.items():
        # BERT's pooler stands inside, a task's head outside.
        found[module] = f"{begin if '.' in name else ''}{name}"
    return found


def _leaves(tensors, name: str, module: str, sizes: Sizes) -> dict[str, np.ndarray]:
    """Returns the leaves of one module, whose shapes are checked."""
    kind, width = module.rpartition("/")[2], sizes.width
    rows = {"word": sizes.vocabulary, "position": sizes.positions, "text": sizes.texts}
    if kind in rows:
        found = {"embedding": _tensor(tensors, f"{name}.weight", (rows[kind], width))}
    elif kind.startswith("norm"):
        found = {"scale": _tensor(tensors, f"{name}.weight", (width,))}
    else:
        inputs = sizes.hidden if kind == "down" else width
        outputs = {"up": sizes.hidden, "score": None}.get(kind, width)
        kernel = _tensor(tensors, f"{name}.weight", (outputs, inputs))
        found = {"kernel": np.ascontiguousarray(kernel.T)}  # [out, in] in the file
    if kind not in rows:
        shape = found["kernel"].shape[1:] if "kernel" in found else (width,)
        found["bias"] = _tensor(tensors, f"{name}.bias", shape)
    return found


def _tensor(tensors, name: str, shape: tuple) -> np.ndarray:
    """Returns a tensor, after checking its shape, in which None is any number."""
    if name not in tensors:
        raise ValueError(f"model.safetensors lacks the tensor {name!r}")
    found = tensors[name].shape
    fits = [want in (None, size) for want, size in zip(shape, found, strict=False)]
    if len(found) != len(shape) or not all(fits):
        raise ValueError(f"tensor {name!r} has shape {found}, expected {shape}")
    if not np.isfinite(tensors[name]).all():
        raise ValueError(f"tensor {name!r} has values that are not finite")
    return tensors[name]
