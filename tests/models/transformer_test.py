"""Transformer encoders: outputs by hand and by `transformers`, frozen, pruned, read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import flash_sst2
from sparsefl_jax import models
from sparsefl_jax.config.defaults import freeze
from sparsefl_jax.models import transformer
from sparsefl_jax.sparsity import masks, trees
from tests.reference import transformer_by_hand as by_hand
from tests.refusals import refused

KINDS = tuple(by_hand.CONFIGS)
SENTENCES = ([2, 5, 1, 9], [3, 10, 4, 4, 7, 1], [6])
CLASSES = 3


def padded(sentences, length=7):
    rows = [[*tokens, *[0] * (length - len(tokens))] for tokens in sentences]
    return jnp.asarray(rows, jnp.int32)


def logits(model, key, x):
    return apply(model, *model.init(key), x)


def apply(model, params, stats, x, **options):
    options = {"train": False} | options
    run = jax.jit(lambda p, x: model.apply(p, stats, x, **options)[0])
    return np.asarray(run(params, x))


@pytest.fixture(params=KINDS)
def folder(request, tmp_path):
    pytest.importorskip("safetensors", reason="needs the extra [text]")
    found = by_hand.tensors(request.param, CLASSES)
    return by_hand.write(tmp_path / request.param, request.param, found)


def test_outputs_are_those_of_the_formulas(folder, key):
    kind = folder.rpartition("/")[2]
    found = by_hand.tensors(kind, CLASSES)
    want = [by_hand.forward(kind, found, tokens) for tokens in SENTENCES]
    model = transformer.pretrained_encoder(CLASSES, (7,), folder=folder)
    np.testing.assert_allclose(logits(model, key, padded(SENTENCES)), want, atol=1e-4)


@pytest.mark.slow
def test_names_without_a_prefix_and_of_the_first_release(tmp_path, key):
    """The encoder alone, whose normalisations have gamma and beta."""
    pytest.importorskip("safetensors", reason="needs the extra [text]")
    found = by_hand.tensors("bert", CLASSES)
    old = {}
    for name, tensor in found.items():
        if not name.startswith("classifier"):
            if "LayerNorm" in name:
                name = name.replace("weight", "gamma").replace("bias", "beta")
            old[name.removeprefix("bert.")] = tensor
    folders = (
        by_hand.write(tmp_path / "new", "bert", found),
        by_hand.write(tmp_path / "old", "bert", old),
    )
    new, params = (
        transformer.pretrained_encoder(CLASSES, (7,), folder=f).init(key)[0]
        for f in folders
    )
    drawn = {"score": None}
    jax.tree.map(np.testing.assert_array_equal, new | drawn, params | drawn)
    pooler = found["bert.pooler.dense.weight"]
    np.testing.assert_array_equal(params["pooler"]["kernel"], pooler.T)
    assert np.std(params["score"]["kernel"]) < 0.05  # drawn: the file's has 1


@pytest.mark.parametrize("folder", ["bert"], indirect=True)
def test_frozen_embeddings_are_no_parameters(folder, key):
    frozen, free = (
        transformer.pretrained_encoder(CLASSES, (7,), folder=folder, frozen=frozen)
        for frozen in (True, False)
    )
    (held, _), (trained, _) = frozen.init(key), free.init(key)
    assert "embed" in trained and trained.keys() - held.keys() == {"embed"}
    assert held.keys() == frozen.macs.keys()
    x = padded(SENTENCES)
    np.testing.assert_array_equal(logits(frozen, key, x), logits(free, key, x))
    more = transformer.pretrained_encoder(CLASSES + 1, (7,), folder=folder)
    assert more.macs["score"]["kernel"] == by_hand.WIDTH * (CLASSES + 1)
    with pytest.raises(ValueError, match="expected at most 8 tokens"):
        transformer.pretrained_encoder(CLASSES, (9,), folder=folder)


@pytest.mark.parametrize("chosen", ["all", "layers"])
def test_dense_layers_are_pruned_and_a_configuration_leaves_out_the_head(chosen):
    model = models.build("encoder", 2, (7,), layers=1)
    config = freeze(flash_sst2.get_config("jmwst,mini"))
    patterns = [config.algorithm["prunable"]] if chosen == "layers" else []
    found = trees.by_path(masks.prunable(model.macs, *patterns))
    names = [f"layer1/{n}" for n in ("query", "key", "value", "out", "up", "down")]
    names += ["pooler", "score"] if chosen == "all" else []
    assert {p for p, kept in found.items() if kept} == {f"{n}/kernel" for n in names}


def test_padding_changes_nothing_and_a_padded_sample_is_finite(key):
    model = models.build("encoder", 2, (7,), layers=1, width=8, heads=2)
    long, empty = padded(SENTENCES), jnp.zeros((1, 7), jnp.int32)
    params, _ = model.init(key)
    other = params["embed"]["word"]["embedding"].at[0].set(5.0)
    changed = params | {"embed": params["embed"] | {"word": {"embedding": other}}}
    before, after = (apply(model, p, {}, long) for p in (params, changed))
    np.testing.assert_array_equal(before, after)
    assert np.isfinite(apply(model, params, {}, empty)).all()


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"model_type": "gpt2"}, "model_type='gpt2', expected one of bert, distilbert"),
        ({"num_hidden_layers": 3}, "lacks a tensor 'bert.encoder.layer.2"),
        ({"vocab_size": 12}, "of shape (12, 6)"),
        ("nan", "has values that are not finite"),
        ("cut", "cannot be used"),
    ],
    ids=str,
)
def test_a_folder_that_cannot_be_used_is_one_line(tmp_path, changes, told):
    pytest.importorskip("safetensors", reason="needs the extra [text]")
    found, damaged = by_hand.tensors("bert", CLASSES), isinstance(changes, str)
    if changes == "nan":
        found["classifier.bias"] = np.full(CLASSES, np.nan, np.float32)
    options = {} if damaged else changes
    folder = by_hand.write(tmp_path / "bad", "bert", found, **options)
    if changes == "cut":
        (tmp_path / "bad" / "model.safetensors").write_bytes(b"cut")
    refused(lambda: transformer.pretrained_encoder(CLASSES, (7,), folder=folder), told)
