"""Texts to features: tables, hashing, encoders, the command, a run."""

import subprocess
import sys

import numpy as np
import pytest

from sparsefl_jax.data import prepared_tfds, sources, text
from sparsefl_jax.data.federated import federate
from sparsefl_jax.report import read_records
from sparsefl_jax.runs import experiment
from sparsefl_jax.runs.config import defaults
from tests import transformer_by_hand as by_hand

pytestmark = pytest.mark.slow

ROWS = [
    ("mood", "author", "tweet"),
    ("4", "zoe", 'a "good", day'),
    ("0", "al", "bad\nday"),
    ("10", "zoe", "zażółć"),
    ("4", "bo", ""),
]
COLUMNS = ("tweet", "mood", "author")


def write(path, rows=ROWS, delimiter=",", encoding="utf-8"):
    quoted = [[f'"{cell.replace(chr(34), 2 * chr(34))}"' for cell in r] for r in rows]
    lines = [delimiter.join(cells) for cells in quoted]
    path.write_text("\r\n".join(lines) + "\r\n", encoding=encoding, newline="")
    return path


# --- tables


@pytest.mark.parametrize(
    "name, how, columns, header",
    [
        ("t.csv", {}, COLUMNS, True),
        ("t.tsv", {"delimiter": "\t", "encoding": "utf-8-sig"}, COLUMNS, True),
        ("t.csv", {"encoding": "utf-16"}, COLUMNS, True),
        ("t.csv", {"rows": ROWS[1:]}, ("2", "0", "1"), False),
    ],
)
def test_tables(tmp_path, name, how, columns, header):
    path = write(tmp_path / name, **how)
    encoding = "utf-16" if how.get("encoding") == "utf-16" else None
    got = text.read_table(path, *columns, header=header, encoding=encoding)
    assert got.texts == ['a "good", day', "bad\nday", "zażółć", ""]
    assert got.class_names == ["0", "4", "10"] and got.y.tolist() == [1, 0, 2, 1]
    assert got.users.tolist() == [2, 0, 2, 1]


def test_labels_can_be_words(tmp_path):
    rows = [("t", "l"), ("x", "no"), ("y", "yes"), ("z", "10")]
    got = text.read_table(write(tmp_path / "t.csv", rows), "t", "l")
    assert got.class_names == ["10", "no", "yes"] and got.y.tolist() == [1, 2, 0]
    assert got.users is None


BAD_TABLES = [
    ([], {}, "text='tweet', expected one of none"),
    (ROWS[:1], {}, "has no texts"),
    (
        ROWS,
        {"label": "moos"},
        "label='moos' .did you mean 'mood'.., .* mood, author",
    ),
    (ROWS, {"user": "who"}, "user='who', expected one of "),
    ([*ROWS, ("1", "", "x")], {}, "line 7 lacks"),
    ([*ROWS, ("", "al", "x")], {}, "line 7 lacks"),
    ([*ROWS, ("1", "al")], {}, "line 7 lacks"),
    (ROWS, {"encoding": "ascii"}, "can't decode byte"),
    (ROWS, {"encoding": "nope"}, "unknown encoding: nope"),
    ([*ROWS, ("1", "al", "x" * 200_000)], {}, "field larger than"),
]


@pytest.mark.parametrize("rows, change, told", BAD_TABLES, ids=lambda v: str(v)[-40:])
def test_bad_tables_are_one_line(tmp_path, rows, change, told):
    given = dict(zip(("text", "label", "user"), COLUMNS, strict=True)) | change
    with pytest.raises(ValueError, match=told) as caught:
        text.read_table(write(tmp_path / "t.csv", rows), **given)
    assert "\n" not in str(caught.value)


# --- features


def test_hashed_letters():
    x = text.hashed(["Good good film", "film good GOOD", "film", ""], 4096)
    assert x.shape == (4, 4096) and x.dtype == np.float32
    np.testing.assert_array_equal(x[0], x[1])  # order and case carry nothing
    assert (x[2] != 0).sum() == 7  # " fi", "fil", "ilm", "lm ", " fil", "film", "ilm "
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), [1, 1, 1, 0], rtol=1e-6)
    assert x[0] @ x[2] == pytest.approx(1 / np.sqrt(5))  # counts 2 and 1, 7 of each
    with pytest.raises(ValueError, match="hash=0, expected at least 1"):
        text.hashed(["a"], 0)


class Lengths:
    """An encoder whose tokens are 1s, and whose states are their number and shape."""

    def __init__(self):
        self.shapes = []

    def tokenize(self, texts):
        return np.array(
            [[1] * min(len(t), 9) + [0] * max(9 - len(t), 0) for t in texts]
        )

    def states(self, tokens):
        self.shapes.append(tokens.shape)
        return np.stack([tokens.sum(1), [len(tokens)] * len(tokens)], 1, dtype="f4")

    def encoder(self):
        return text.Encoder(self.tokenize, self.states)


def test_embed_batches_by_length_and_keeps_the_order():
    lengths, sizes = Lengths(), [5, 30, 1, 7, 2]
    texts = ["x" * size for size in sizes]
    x = text.embed(texts, lengths.encoder(), batch_size=2)
    assert x.dtype == np.float32 and x[:, 0].tolist() == [5, 9, 1, 7, 2]
    assert lengths.shapes == [(2, 2), (2, 8), (2, 9)]  # cut to powers of two, or whole
    assert x[1, 1] == 2  # the last batch has a row of padding
    with pytest.raises(ValueError, match="batch_size=0"):
        text.embed(texts, lengths.encoder(), batch_size=0)


@pytest.mark.parametrize("kind", by_hand.CONFIGS)
def test_features_are_the_first_tokens_states(kind, tmp_path, capsys):
    """A folder as it is downloaded, without torch."""
    pytest.importorskip("tokenizers", reason="needs the extra [text]")
    pytest.importorskip("safetensors", reason="needs the extra [text]")
    found = by_hand.tensors(kind, 2)
    folder = by_hand.write(tmp_path / kind, kind, found)
    (tmp_path / kind / "vocab.txt").write_text("\n".join(by_hand.PIECES))
    rows = [("t", "l"), ("A good film", "1"), ("bad, bad FILMS", "0"), ("odd", "0")]
    path, out = write(tmp_path / "t.csv", rows), tmp_path / "out.npz"
    given = [str(path), str(out), "--text=t", "--label=l", f"--encoder={folder}"]
    assert text.main([*given, "--batch_size=2"]) == 0
    sentences = [2, 5, 6, 7, 3], [2, 10, 9, 10, 7, 8, 3], [2, 1, 3]
    want = [by_hand.forward(kind, found, s)[0] for s in sentences]
    np.testing.assert_allclose(sources.load(out).x, want, atol=1e-4)
    with np.load(out) as kept:
        assert str(kept["features"]) == f"first token of {kind}"
    assert not {"torch", "transformers"} & set(sys.modules)


# --- the command


def arguments(path, out, *more):
    named = (f"--{k}={v}" for k, v in zip(("text", "label", "user"), COLUMNS, strict=1))
    return [str(path), str(out), *named, *more]


def test_a_table_becomes_a_data_set(tmp_path, capsys):
    path, out = write(tmp_path / "t.csv"), tmp_path / "tweets.npz"
    assert text.main(arguments(path, out, "--hash=16")) == 0
    told = capsys.readouterr().out
    assert "4 training texts of 3 users" in told and "0 0, 1 4, 2 10" in told
    data = sources.load(out)
    assert data.name == "tweets" and data.x.shape == (4, 16) and data.num_classes == 3
    assert data.users.tolist() == [2, 0, 2, 1] and not len(data.x_test)
    fed = federate(data, "natural", test_split="within", min_samples=2)
    assert fed.train.size.tolist() == [1] and fed.test.size.tolist() == [1]
    with np.load(out) as kept:
        assert kept["class_names"].tolist() == ["0", "4", "10"]
        assert str(kept["features"]) == "letters hashed to 16 features"


def command(*argv):
    child = [sys.executable, "-m", "sparsefl_jax.data.text", *argv]
    return subprocess.run(child, capture_output=True, text=True)


def test_the_real_command_refuses_in_one_line(tmp_path):
    path = write(tmp_path / "t.csv")
    done = command(*arguments(path, tmp_path / "o.npz", "--encoder=no/such/model"))
    assert done.returncode == 2 and not done.stdout
    assert done.stderr == (
        "error: folder='no/such/model' has no config.json, expected a folder with "
        "config.json and model.safetensors of a BERT or a DistilBERT\n"
    )


def test_what_is_missing_is_one_line(tmp_path, monkeypatch, capsys):
    path, out = write(tmp_path / "t.csv"), tmp_path / "o.npz"
    pytest.importorskip("safetensors", reason="needs the extra [text]")
    folder = by_hand.write(tmp_path / "bert", "bert", by_hand.tensors("bert", 2))
    (tmp_path / "bert" / "vocab.txt").write_text("[PAD]")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    hashing = "--hash=8"
    for given, told in [
        (arguments(path, out, f"--encoder={folder}"), "'sparsefl_jax[text]'"),
        (arguments(path, tmp_path / "o.txt", hashing), "expected a name that ends"),
        (
            arguments(path, tmp_path / "no" / "o.npz", hashing),
            "expected a folder that exists",
        ),
        (arguments(tmp_path / "no.csv", out, hashing), "No such file"),
        ([str(path), str(out), "--text=tweet", hashing], "--text and --label are"),
        (arguments("glue/sst2", out, hashing), "has no columns to name"),
        (["glue/sst2", str(out), f"--data_dir={tmp_path}", hashing], "not prepared"),
    ]:
        assert text.main(given) == 2
        error = capsys.readouterr().err
        assert told in error and error.startswith("error: ") and error.count("\n") == 1
    assert not out.exists()


@pytest.mark.needs("data/tfds/glue")
def test_real_sentences(shared, tmp_path, monkeypatch):
    folder = str(shared / "data" / "tfds")
    (texts, y, texts_test, y_test), names = prepared_tfds.read_texts(
        "glue/sst2", folder
    )
    assert len(texts) == len(y) == 67_349 and len(texts_test) == 872
    assert names == ["negative", "positive"]
    assert set(y) == set(y_test) == {0, 1}  # not the split whose labels are secret
    assert all(isinstance(t, str) for t in texts) and "tensorflow" not in sys.modules
    few = (texts[:200], y[:200], texts_test, y_test)
    monkeypatch.setattr(prepared_tfds, "read_texts", lambda *_: (few, names))
    out = tmp_path / "sst2.npz"
    assert text.main(["glue/sst2", str(out), "--hash=32"]) == 0
    data = sources.load(out)
    assert data.x.shape == (200, 32) and data.x_test.shape == (872, 32)
    assert data.users is None and data.num_classes == 2
    with pytest.raises(ValueError, match="one Image .* sparsefl_jax.data.text"):
        sources.load("glue/sst2", data_dir=folder)


def test_a_whole_run_on_features(tmp_path):
    moods = {"awful": 0, "dull": 0, "great": 1, "lovely": 1}
    rows = [("tweet", "mood", "author")]
    rows += [
        (f"a {w} film {i}", str(m), f"u{i}") for i in range(9) for w, m in moods.items()
    ]
    out = tmp_path / "films.npz"
    assert text.main(arguments(write(tmp_path / "t.csv", rows), out, "--hash=768")) == 0
    config = defaults.default_config()
    config.dataset, config.model.name = str(out), "sa"
    config.partition.name, config.num_clients = "natural", 0
    config.test_split = "within"
    config.num_rounds = config.eval_every = 20
    config.cohort_size, config.batch_size, config.optimizer.learning_rate = 4, 1, 0.5
    run = tmp_path / "run"
    experiment.run(defaults.complete(config), run, progress=False)
    lines = read_records(run / "metrics.jsonl")
    assert lines[-1]["accuracy"] > 0.9
