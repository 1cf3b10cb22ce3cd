"""BERT and DistilBERT in NumPy, from tensors named and laid out as in their files."""

import json
import math

import numpy as np

WIDTH, HEADS, HIDDEN, LAYERS, ROWS, POSITIONS = 6, 2, 5, 2, 11, 8
PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # a vocabulary
PIECES += ("a", "good", "film", "##s", ",", "bad")
SHARED = {"vocab_size": ROWS, "max_position_embeddings": POSITIONS}
CONFIGS = {
    "bert": SHARED
    | {"model_type": "bert", "num_hidden_layers": LAYERS, "hidden_size": WIDTH}
    | {"num_attention_heads": HEADS, "intermediate_size": HIDDEN, "hidden_act": "gelu"}
    | {"type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0},
    "distilbert": SHARED
    | {"model_type": "distilbert", "n_layers": LAYERS, "dim": WIDTH, "n_heads": HEADS}
    | {"hidden_dim": HIDDEN, "activation": "relu"},
}


def names(prefix, *parts):
    return tuple(f"{prefix}.{{}}.{part}" for part in parts)


# query, key, value, output; normalisation; up, down; normalisation
LAYER = {
    "bert": names(
        "encoder.layer",
        *("attention.self.query", "attention.self.key", "attention.self.value"),
        *("attention.output.dense", "attention.output.LayerNorm"),
        *("intermediate.dense", "output.dense", "output.LayerNorm"),
    ),
    "distilbert": names(
        "transformer.layer",
        *("attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin"),
        *("sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm"),
    ),
}
HEAD = {
    "bert": ("bert.pooler.dense", "classifier"),
    "distilbert": ("pre_classifier", "classifier"),
}


def tensors(kind: str, num_classes: int) -> dict[str, np.ndarray]:
    """Returns random tensors of a network that classifies."""
    rng, found = np.random.default_rng(0), {}

    def affine(name, *shape):
        found[f"{name}.weight"] = rng.normal(size=shape)
        found[f"{name}.bias"] = rng.normal(size=shape[:1])

    tables = {"word": ROWS, "position": POSITIONS, "token_type": 2}
    for table, rows in list(tables.items())[: 3 if kind == "bert" else 2]:
        name = f"{kind}.embeddings.{table}_embeddings.weight"
        found[name] = rng.normal(size=(rows, WIDTH))
    affine(f"{kind}.embeddings.LayerNorm", WIDTH)
    square, wide = (WIDTH, WIDTH), (HIDDEN, WIDTH)
    shapes = (*4 * (square,), (WIDTH,), wide, wide[::-1], (WIDTH,))
    for i in range(LAYERS):
        for name, shape in zip(LAYER[kind], shapes, strict=True):
            affine(f"{kind}.{name.format(i)}", *shape)
    affine(HEAD[kind][0], *square)
    affine(HEAD[kind][1], num_classes, WIDTH)
    return {k: v.astype(np.float32) for k, v in found.items()}


def write(folder, kind: str, found: dict, **changes) -> str:
    """Writes a network's folder; returns it."""
    from safetensors import numpy as safetensors

    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[kind] | changes))
    safetensors.save_file(found, folder / "model.safetensors")
    return str(folder)


def norm(x, found, name):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-12)
    return x * found[f"{name}.weight"] + found[f"{name}.bias"]


def dense(x, found, name):
    return x @ found[f"{name}.weight"].T + found[f"{name}.bias"]


def activation(kind, x):
    if kind == "distilbert":
        return np.maximum(x, 0)
    return np.vectorize(lambda v: v * (1 + math.erf(v / math.sqrt(2))) / 2)(x)


def forward(kind: str, found: dict, sentence: list[int]):
    """Returns the logits of a sentence without padding."""
    found = {k: v.astype(np.float64) for k, v in found.items()}
    begin = f"{kind}.embeddings"
    x = found[f"{begin}.word_embeddings.weight"][sentence]
    x = x + found[f"{begin}.position_embeddings.weight"][: len(sentence)]
    if kind == "bert":
        x = x + found[f"{begin}.token_type_embeddings.weight"][0]
    x = norm(x, found, f"{begin}.LayerNorm")
    for i in range(LAYERS):
        q, k, v, out, norm1, up, down, norm2 = (
            f"{kind}.{name.format(i)}" for name in LAYER[kind]
        )
        mixed, size = [], WIDTH // HEADS
        for head in range(HEADS):
            part = slice(head * size, (head + 1) * size)
            query, key, value = (dense(x, found, n)[:, part] for n in (q, k, v))
            odds = np.exp(query @ key.T / np.sqrt(size))
            mixed.append(odds / odds.sum(1, keepdims=True) @ value)
        x = norm(x + dense(np.hstack(mixed), found, out), found, norm1)
        hidden = activation(kind, dense(x, found, up))
        x = norm(x + dense(hidden, found, down), found, norm2)
    pooled = dense(x[0], found, HEAD[kind][0])
    pooled = np.tanh(pooled) if kind == "bert" else np.maximum(pooled, 0)
    return dense(pooled, found, HEAD[kind][1])
