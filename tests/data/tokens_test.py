"""Tokens as samples and sequences as targets: the loss, the data, a network."""

import zlib

import jax.numpy as jnp
import numpy as np
import pytest

import sparsefl_jax as sfl
from configs import shakespeare
from sparsefl_jax.config import build
from sparsefl_jax.config.defaults import freeze
from sparsefl_jax.data import characters, sources, tokens
from sparsefl_jax.models.loss import cross_entropy, per_sample
from tests.data.leaf_test import write
from tests.reference import transformer_by_hand as by_hand
from tests.refusals import refused
from tests.tiny import tiny_config

LOG2 = float(np.log(2))
WORDS, SENTENCES = {"tokenizer": "words"}, "sentences_sample"


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


def test_integers_stay_tokens_and_sequences_stay_targets():
    x = np.array([[1, 300], [2, 70_000]], np.int64)
    data = sources.make_dataset(x, x % 7, num_classes=7)
    assert data.x.dtype == np.int32 and data.x.tolist() == x.tolist()
    assert data.y.shape == (2, 2) and data.num_classes == 7
    with pytest.raises(ValueError, match=r"int64 \(2,\), y_test has int64 \(3,\)"):
        sources.make_dataset(x, x % 7, x, np.zeros((2, 3), int), num_classes=7)


def test_partitions_by_label_see_the_last_target():
    y = np.stack([np.zeros(40, int), np.arange(40) % 2], 1)
    given = {"x_test": y, "y_test": y, "num_clients": 2}
    data = sfl.from_arrays(y, y, partition="shards", k=1, **given)
    counts = sfl.data.partition_counts(data)
    assert sorted(counts.tolist()) == [[0, 20], [20, 0]]


def leaf(folder, x, y):
    user = {"users": ["PUCK"], "num_samples": [len(x)]}
    user |= {"user_data": {"PUCK": {"x": x, "y": y}}}
    return sources.load(write(folder, {"train/all.json": user}))


def test_leafs_texts_become_tokens(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    data = leaf(tmp_path / "play", ["I go", "go, "] * 20, [",", "I"] * 20)
    said = ["".join(characters.ALPHABET[c] for c in row) for row in data.y[:2]]
    assert said == [" go,", "o, I"] and data.x.dtype == np.uint8
    with pytest.raises(ValueError, match=r"'PUCK': texts of \[2, 4\] characters"):
        leaf(tmp_path / "uneven", ["I go", "go"], [",", "I"])
    with pytest.raises(ValueError, match="'PUCK': labels of several characters"):
        leaf(tmp_path / "many", ["I go", "go, "], [",", "I go"])


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
    refused(lambda: tokens.make_tokenizer(tmp_path), "[PAD] is 1, expected 0")


@pytest.mark.parametrize(
    "name, given, told",
    [
        ("mnist_sample", WORDS, "'mnist_sample' has no texts"),
        (SENTENCES, {"max_tokens": 9}, "it goes with tokenizer"),
        (SENTENCES, WORDS | {"max_tokens": 1}, "max_tokens=1, expected at least 2"),
        (SENTENCES, {"tokenizer": "nowhere"}, "'words' or a folder with"),
    ],
)
def test_encodings_that_are_refused(name, given, told):
    refused(lambda: sources.load(name, **given), told)


def test_the_configuration_reads_the_play_whose_characters_are_users():
    config = shakespeare.get_config("mini")
    data = build.build_data(freeze(config))
    np.testing.assert_array_equal(data.x[:, 1:], data.y[:, :-1])
    assert data.x.shape[1] == 40 and len(data.train.size) == 24
    config.scramble = True
    said = "scramble=True has no effect here"
    refused(lambda: build.build_model(freeze(config), data), said)


def test_a_token_beyond_the_table_is_refused(tmp_path):
    x = np.arange(40).reshape(20, 2) % 9
    np.savez(tmp_path / "tokens.npz", x=x, y=x % 4)
    config = tiny_config(tmp_path)
    config.dataset, config.test_split = str(tmp_path / "tokens.npz"), "within"
    config.model = {"name": "char_gru", "units": 2}
    build_it = lambda: build.build_model(  # noqa: E731
        freeze(config), build.build_data(freeze(config))
    )
    refused(build_it, "token 8, ")
