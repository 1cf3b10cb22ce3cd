"""Transformer encoders: outputs by hand and by `transformers`, frozen, pruned, read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsefl_jax as sfl
from configs import flash_sst2
from sparsefl_jax import models
from sparsefl_jax.export.compact import compact
from sparsefl_jax.models import transformer, wiring
from sparsefl_jax.runs.config.defaults import freeze
from sparsefl_jax.sparsity import filters, masks, width
from tests.reference import transformer_by_hand as by_hand

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
    pairs = [by_hand.forward(kind, found, tokens) for tokens in SENTENCES]
    states, want = map(np.array, zip(*pairs, strict=True))
    model = transformer.pretrained_encoder(CLASSES, (7,), folder=folder)
    np.testing.assert_allclose(logits(model, key, padded(SENTENCES)), want, atol=1e-4)
    read, positions = transformer.read_states(folder)
    np.testing.assert_allclose(read(padded(SENTENCES)), states, atol=1e-4)
    assert positions == by_hand.POSITIONS


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
    new, old = (transformer.read_states(f)[0](padded(SENTENCES)) for f in folders)
    np.testing.assert_array_equal(new, old)
    model = transformer.pretrained_encoder(CLASSES, (7,), folder=folders[1])
    params, _ = model.init(key)
    pooler = found["bert.pooler.dense.weight"]
    np.testing.assert_array_equal(params["pooler"]["kernel"], pooler.T)
    assert np.std(params["score"]["kernel"]) < 0.05  # drawn: the file's has 1


@pytest.mark.parametrize("folder", ["distilbert"], indirect=True)
def test_another_number_of_classes_draws_a_classifier(folder, key):
    model = transformer.pretrained_encoder(CLASSES + 1, (7,), folder=folder)
    assert model.init(key)[0]["score"]["kernel"].shape == (by_hand.WIDTH, CLASSES + 1)


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


@pytest.mark.slow
def test_frozen_embeddings_follow_the_dtype(folder, key):
    model = transformer.pretrained_encoder(CLASSES, (7,), folder=folder)
    half, x = model.computing("bfloat16"), padded(SENTENCES)
    assert 0 < np.abs(logits(half, key, x) - logits(model, key, x)).max() < 0.4
    params, _ = half.init(key)
    traced = jax.make_jaxpr(lambda p: half.apply(p, {}, x, train=False))(params)
    products = [line for line in str(traced).splitlines() if "= dot_general" in line]
    assert products and all(":bf16" in line for line in products)


def test_multiply_adds_by_hand():
    model = models.build("encoder", 2, (7,), layers=1, width=6, heads=2, hidden=5)
    layer = model.macs["layer1"]
    square = {name: 7 * 36 for name in ("query", "key", "value", "out")}
    kernels = {n: part["kernel"] for n, part in layer.items() if "kernel" in part}
    assert kernels == square | {"up": 7 * 30, "down": 7 * 30}
    assert model.macs["pooler"]["kernel"] == 36  # of the first token alone
    assert model.macs["score"] == {"bias": 0, "kernel": 12}
    others = jax.tree.leaves([model.macs["embed"], layer["norm1"], layer["norm2"]])
    assert not any(others) and model.tokens


def test_wiring_names_the_kernels_and_slices_no_width(key):
    model = models.build("encoder", 2, (7,), layers=2, width=4, heads=1, hidden=3)
    shapes = jax.eval_shape(model.init, key)
    order = list(wiring.layers(shapes[0]))
    assert order[0] == "layer1/down" and order[-8:-2] == [
        f"layer2/{n}" for n in ("down", "key", "out", "query", "up", "value")
    ]
    assert order[-2:] == ["pooler", "score"]
    with pytest.raises(ValueError, match="width slicing: 'layer1/value' reads 4"):
        width.check_sliceable(sfl.SparseModel(*shapes[:1], {}, {}))
    with pytest.raises(ValueError, match="layer 'layer1/down', expected conv or fc"):
        filters.largest(shapes[0], 0.5)
    zeros = jax.tree.map(lambda v: np.zeros(v.shape, v.dtype), shapes[0])
    sparse = sfl.SparseModel(zeros, masks.full(zeros), {})
    sizes = {"layers": 2, "width": 4, "heads": 1, "hidden": 3}
    with pytest.raises(ValueError, match="'layer1/down'"):
        compact(sparse, "encoder", 2, (7,), **sizes)


@pytest.mark.parametrize(
    "leave, told",
    [
        ((), "leaf 'embed/position/embedding'"),
        (("embed",), "'layer1/norm1' normalises"),
    ],
)
def test_equal_widths_are_not_sliced_either(leave, told, key):
    """Their shapes are those of a chain, with frozen embeddings as well."""
    model = models.build("encoder", 2, (7,), layers=1, width=4, heads=1, hidden=4)
    params, _ = jax.eval_shape(model.init, key)
    params = {k: v for k, v in params.items() if k not in leave}
    with pytest.raises(ValueError, match=f"width slicing: {told}"):
        width.check_sliceable(sfl.SparseModel(params, {}, {}))


def test_the_default_pattern_prunes_the_dense_layers(key):
    model = models.build("encoder", 2, (7,), layers=1)
    found = wiring.modules(masks.prunable(model.macs))
    chosen = {m for m, leaves in found.items() if leaves.get("kernel")}
    names = ("query", "key", "value", "out", "up", "down")
    assert chosen == {f"layer1/{n}" for n in names} | {"pooler", "score"}
    assert not any(
        any(v for n, v in f.items() if n != "kernel") for f in found.values()
    )


def test_padding_changes_nothing_and_a_padded_sample_is_finite(key):
    model = models.build("encoder", 2, (7,), layers=1, width=8, heads=2)
    long, empty = padded(SENTENCES), jnp.zeros((1, 7), jnp.int32)
    params, _ = model.init(key)
    other = params["embed"]["word"]["embedding"].at[0].set(5.0)
    changed = params | {"embed": params["embed"] | {"word": {"embedding": other}}}
    before, after = (apply(model, p, {}, long) for p in (params, changed))
    np.testing.assert_array_equal(before, after)
    assert np.isfinite(apply(model, params, {}, empty)).all()


@pytest.mark.slow
def test_dropout_draws_in_training_alone(key):
    model = models.build("encoder", 2, (7,), layers=1, width=8, heads=2, dropout=0.5)
    params, stats = model.init(key)
    x = padded(SENTENCES)
    keys = jax.random.split(key)
    first, second = (apply(model, params, stats, x, train=True, key=k) for k in keys)
    assert (first != second).any()


@pytest.mark.parametrize(
    "change, told",
    [
        ({"heads": 3}, "heads=3, expected to divide width=64"),
        ({"layers": 0}, "layers=0, expected at least 1"),
        ({"dropout": 1.0}, "dropout=1.0, expected in .0, 1."),
    ],
    ids=str,
)
def test_sizes_are_refused(change, told):
    with pytest.raises(ValueError, match=told):
        models.build("encoder", 2, (7,), **change)


DAMAGES = [
    ({"model_type": "gpt2"}, "model_type='gpt2', expected one of bert, distilbert"),
    ({"position_embedding_type": "relative_key"}, "expected 'absolute'"),
    ({"hidden_act": "silu"}, "activation='silu'.*expected one of gelu, relu"),
    ({"hidden_size": "6"}, "width='6', expected an integer"),
    ({"num_attention_heads": 4}, "heads=4, expected to divide width=6"),
    ({"pad_token_id": 3}, "pad_token_id=3, expected 0"),
    ({"num_hidden_layers": 3}, "lacks a tensor 'bert.encoder.layer.2"),
    ({"vocab_size": 12}, r"_embeddings.weight' for .* of shape \(12, 6\)"),
]


@pytest.mark.parametrize("changes, told", DAMAGES, ids=lambda v: str(v)[:30])
def test_a_folder_that_cannot_be_used_is_one_line(tmp_path, changes, told):
    pytest.importorskip("safetensors", reason="needs the extra [text]")
    found = by_hand.tensors("bert", CLASSES)
    folder = by_hand.write(tmp_path / "bad", "bert", found, **changes)
    with pytest.raises(ValueError, match=told) as caught:
        transformer.pretrained_encoder(CLASSES, (7,), folder=folder)
    assert "\n" not in str(caught.value) and folder in str(caught.value)


@pytest.mark.parametrize("folder", ["bert"], indirect=True)
def test_a_damaged_file_is_one_line(folder, tmp_path):
    with pytest.raises(ValueError, match="expected at most 8 tokens"):
        transformer.pretrained_encoder(CLASSES, (9,), folder=folder)
    (tmp_path / folder / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(ValueError, match="cannot be used") as caught:
        transformer.read_states(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ("fedavg", "jmwst"))
def test_the_configuration_prunes_the_layers_alone(method):
    config = flash_sst2.get_config(f"{method},mini")
    freeze(config)
    whole = flash_sst2.get_config(method)
    whole.tokenizer = "elsewhere"
    folder = freeze(whole).model["folder"]
    assert folder == "elsewhere" and whole.num_rounds == 50
    assert whole.partition.alpha == 1.0 and whole.density in (None, 0.2)
    with pytest.raises(ValueError, match="folder='elsewhere' .*elsewhere/config.json"):
        models.build(whole.model.name, 2, (64,), folder=folder)
    if method != "fedavg":
        model = models.build("encoder", 3, (4,), layers=1)
        chosen = masks.prunable(model.macs, tuple(config.algorithm.prunable))
        paths = [p for p, leaf in wiring.modules(chosen).items() if any(leaf.values())]
        names = ("down", "key", "out", "query", "up", "value")
        assert sorted(paths) == [f"layer1/{n}" for n in names]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_equal_those_of_transformers(kind, tmp_path, key):
    torch = pytest.importorskip("torch", reason="needs torch")
    library = pytest.importorskip("transformers", reason="needs transformers")
    name = {"bert": "Bert", "distilbert": "DistilBert"}[kind]
    sizes = {"vocab_size": 50, "max_position_embeddings": 12, "num_labels": CLASSES}
    own = by_hand.CONFIGS[kind].items()
    sizes = {k: v for k, v in own if k != "model_type"} | sizes
    torch.manual_seed(0)
    network = getattr(library, f"{name}ForSequenceClassification")(
        getattr(library, f"{name}Config")(**sizes)
    )
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    network.eval().save_pretrained(tmp_path)
    x = np.random.default_rng(0).integers(1, 50, (4, 9))
    x[1, 5:] = x[2, 1:] = 0
    tokens = torch.tensor(x)
    options = {"attention_mask": (tokens != 0).long()}
    with torch.no_grad():
        want = network(tokens, **options).logits.numpy()
        hidden = network.base_model(tokens, **options).last_hidden_state[:, 0].numpy()
    model = transformer.pretrained_encoder(CLASSES, (9,), folder=str(tmp_path))
    x = jnp.asarray(x, jnp.int32)
    np.testing.assert_allclose(logits(model, key, x), want, atol=1e-4)
    np.testing.assert_allclose(
        transformer.read_states(tmp_path)[0](x), hidden, atol=1e-4
    )
