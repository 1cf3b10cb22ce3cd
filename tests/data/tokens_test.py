"""Tokens as samples and sequences as targets: the loss, the data, a network."""

import json
import zlib

import jax.numpy as jnp
import numpy as np
import pytest

import sparsefl_jax as sfl
from configs import shakespeare
from sparsefl_jax import models
from sparsefl_jax.data import characters, sources, tokens
from sparsefl_jax.models.loss import cross_entropy, per_sample
from sparsefl_jax.runs.config import build
from sparsefl_jax.runs.config.defaults import freeze
from tests.reference import transformer_by_hand as by_hand
from tests.refusals import refused
from tests.tiny import tiny_config

LOG2 = float(np.log(2))


@pytest.fixture(scope="module")
def play():
    """Returns the clients of the configuration's small variant."""
    return build.build_data(freeze(shakespeare.get_config("mini")))


def test_a_sequence_of_targets_counts_as_the_mean_of_its_tokens():
    # Two samples of two tokens, two classes: even odds, or certain.
    logits = jnp.float32([[[0, 0], [99, 0]], [[99, 0], [99, 0]]])
    targets = jnp.int32([[0, 0], [0, 0]])
    loss, sums = cross_entropy(logits, targets, jnp.ones(2))
    assert loss.item() == pytest.approx(LOG2 / 4)
    assert {k: v.item() for k, v in sums.items()} == pytest.approx(
        {"loss": LOG2 / 2, "correct": 2.0, "count": 2.0}
    )
    _, sums = cross_entropy(logits, jnp.int32([[0, 1], [0, 0]]), jnp.float32([1, 0]))
    assert sums["correct"].item() == 0.5 and sums["count"].item() == 1.0
    hits, losses = per_sample(cross_entropy, logits, jnp.int32([[0, 1], [1, 1]]))
    assert hits.tolist() == [0.5, 0.0]
    assert losses.tolist() == pytest.approx([(LOG2 + 99) / 2, 99.0])


def test_distributions_over_the_classes_of_every_token():
    logits, even = jnp.zeros((1, 3, 2)), jnp.full((1, 3, 2), 0.5)
    assert cross_entropy(logits, even, jnp.ones(1))[0].item() == pytest.approx(LOG2)


def test_integers_stay_tokens_and_sequences_stay_targets():
    x = np.array([[1, 300], [2, 70_000]], np.int64)
    data = sources.make_dataset(x, x % 7, num_classes=7)
    assert data.x.dtype == np.int32 and data.x.tolist() == x.tolist()
    assert data.y.shape == (2, 2) and data.num_classes == 7
    with pytest.raises(ValueError, match="y_test has targets .3,., y has .2,."):
        sources.make_dataset(x, x % 7, x, np.zeros((2, 3), int), num_classes=7)


def test_partitions_by_label_see_the_last_target():
    y = np.stack([np.zeros(40, int), np.arange(40) % 2], 1)
    given = {"x_test": y, "y_test": y, "num_clients": 2}
    data = sfl.from_arrays(y, y, partition="shards", k=1, **given)
    counts = sfl.data.partition_counts(data)
    assert sorted(counts.tolist()) == [[0, 20], [20, 0]]


def test_the_play_has_its_characters_as_users():
    data = sources.load("shakespeare_sample")
    assert data.x.shape[1:] == data.y.shape[1:] == (40,)
    np.testing.assert_array_equal(data.x[:, 1:], data.y[:, :-1])
    first = "".join(characters.ALPHABET[c] for c in data.x[data.users == 0][0])
    assert len(np.unique(data.users)) == 24 and first == first.encode().decode()
    assert data.num_classes <= len(characters.ALPHABET)


def leaf(folder, x, y):
    (folder / "train").mkdir(parents=True)
    user = {"users": ["PUCK"], "num_samples": [len(x)]}
    text = json.dumps(user | {"user_data": {"PUCK": {"x": x, "y": y}}})
    (folder / "train" / "all.json").write_text(text)
    return sources.load(str(folder))


def test_leafs_texts_become_tokens(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    data = leaf(tmp_path / "play", ["I go", "go, "] * 20, [",", "I"] * 20)
    said = ["".join(characters.ALPHABET[c] for c in row) for row in data.y[:2]]
    assert said == [" go,", "o, I"] and data.x.dtype == np.uint8
    with pytest.raises(ValueError, match=r"'PUCK': texts of \[2, 4\] characters"):
        leaf(tmp_path / "uneven", ["I go", "go"], [",", "I"])
    with pytest.raises(ValueError, match="'PUCK': labels of several characters"):
        leaf(tmp_path / "many", ["I go", "go, "], [",", "I go"])


def test_char_gru_counts_every_step_by_hand():
    model = models.build("char_gru", 5, (7,), embedding=2, units=3)
    gru = model.macs["gru"]
    assert model.tokens
    assert {k: v["kernel"] for k, v in gru.items()} == dict(
        ir=7 * 6, iz=7 * 6, hr=7 * 9, hz=7 * 9, hn=7 * 9, **{"in": 7 * 6}
    )
    assert model.macs["head"] == {"bias": 0, "kernel": 7 * 15}
    assert model.macs["embed"] == {"embedding": 0}


@pytest.mark.parametrize(
    "field, value", [("scramble", True), ("augment", ("flip",)), ("input_scale", 2.0)]
)
def test_what_tokens_have_no_use_for_is_refused(play, field, value):
    config = shakespeare.get_config("mini")
    config[field] = value
    said = f"{field}={value} has no effect here"
    refused(lambda: build.build_model(freeze(config), play), said)


def reader(num_classes, input_shape):
    return models.build("char_gru", num_classes, (3,), units=2)


def test_images_are_no_tokens(tmp_path):
    config = tiny_config(tmp_path)
    config.model = {"name": "tests.data.tokens_test:reader"}
    data = build.build_data(freeze(config))
    said = "reads tokens, expected a data set of integers"
    refused(lambda: build.build_model(freeze(config), data), said)


@pytest.mark.slow
def test_a_token_beyond_the_table_is_refused(tmp_path):
    x = np.arange(40).reshape(20, 2) % 9
    np.savez(tmp_path / "tokens.npz", x=x, y=x % 4)
    config = tiny_config(tmp_path)
    config.dataset, config.test_split = str(tmp_path / "tokens.npz"), "within"
    config.model = {"name": "char_gru", "units": 2}
    with pytest.raises(ValueError, match="no row for token 8, .* expected 9 rows"):
        build.build_model(freeze(config), build.build_data(freeze(config)))
    config.num_classes = 9
    build.build_model(freeze(config), build.build_data(freeze(config)))
    config.model = {"name": "encoder", "vocabulary": 8, "width": 4, "heads": 1}
    with pytest.raises(ValueError, match="token 8, .* expected 9 rows"):
        build.build_model(freeze(config), build.build_data(freeze(config)))


def test_sentences_become_hashed_words():
    data = sources.load("sentences_sample", tokenizer="words", max_tokens=12)
    plain = sources.load("sentences_sample")
    assert data.x.dtype == np.int32 and data.x.shape == (len(plain.x), 12)
    assert (data.x[:, 0] == 1).all() and data.x.max() < tokens.NUM_WORDS
    np.testing.assert_array_equal(data.y, plain.y)
    np.testing.assert_array_equal(data.users_test, plain.users_test)


def test_words_are_hashed_alike_everywhere():
    x = tokens.make_tokenizer("words", 6).encode(["Films, films!", "", "a b c d e f g"])
    hashed = [2 + zlib.crc32(w) % 4094 for w in (b"films", b",", b"films", b"!")]
    assert x[0].tolist() == [1, *hashed, 0] and x[1].tolist() == [1, 0, 0, 0, 0, 0]
    assert x[2].all() and x.dtype == np.int32


def test_word_pieces_of_a_folder(tmp_path):
    pytest.importorskip("tokenizers", reason="needs the extra [text]")
    (tmp_path / "vocab.txt").write_text("\n".join(by_hand.PIECES))
    pieces = tokens.make_tokenizer(tmp_path, 7)
    texts = ["A good,  good films", "odd", "good film good film good"]
    want = [2, 5, 6, 9, 6, 7, 3], [2, 1, 3, 0, 0, 0, 0], [2, 6, 7, 6, 7, 6, 3]
    assert pieces.encode(texts).tolist() == list(map(list, want))
    assert pieces.encode([]).shape == (0, 7)
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text('{"do_lower_case": false}')
    cased = tokens.make_tokenizer(tmp_path, 7)
    assert cased.encode(["bad A"])[0, :4].tolist() == [2, 10, 1, 3]
    assert cased.identity != pieces.identity
    settings.write_text("{")
    refused(lambda: tokens.make_tokenizer(tmp_path), "cannot be used")
    settings.unlink()
    (tmp_path / "vocab.txt").write_text("\n".join(["x", *by_hand.PIECES]))
    with pytest.raises(ValueError, match=r"\[PAD\] is 1, expected 0"):
        tokens.make_tokenizer(tmp_path)


WORDS = {"tokenizer": "words"}
REFUSED = [
    ("mnist_sample", WORDS, "'mnist_sample' has no texts"),
    ("sentences_sample", {"max_tokens": 9}, "it goes with tokenizer"),
    (
        "sentences_sample",
        WORDS | {"max_tokens": 1},
        "max_tokens=1, expected at least 2",
    ),
    ("sentences_sample", {"tokenizer": "nowhere"}, "'words' or a folder with"),
    (
        "sentences_sample",
        WORDS | {"text_encoder": "a"},
        "are set, expected one of them",
    ),
    (
        "sentences_sample",
        {"text_encoder": "no/model"},
        "'no/model/config.json'",
    ),
]


@pytest.mark.parametrize("name, given, told", REFUSED, ids=str)
def test_encodings_that_are_refused(name, given, told):
    refused(lambda: sources.load(name, **given), told)


@pytest.mark.parametrize("method", shakespeare.METHODS)
def test_the_configuration_builds(play, method):
    config, data = shakespeare.get_config(f"{method},mini"), play
    model = build.build_model(freeze(config), data)
    assert len(build.build_stages(freeze(config), model)) == (
        2 if method == "spdst" else 1
    )
