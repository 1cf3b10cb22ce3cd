"""Texts to features: tables, hashing, an encoder's stand-in, the command, a run."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from sparsefl_jax.data import prepared_tfds, sources, text
from sparsefl_jax.data.federated import federate
from sparsefl_jax.report import read_records
from sparsefl_jax.runs import experiment
from sparsefl_jax.runs.config import defaults

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


class Encoder:
    """Returns the lengths of text and batch at the first token, -1 elsewhere."""

    def __init__(self):
        self.batches = []

    def tokenizer(self, texts, **how):
        assert how == {
            "padding": True,
            "truncation": True,
            "max_length": 9,
            "return_tensors": "pt",
        }
        self.batches.append(len(texts))
        longest = max(map(len, texts))
        return {"lengths": [min(len(t), 9) for t in texts], "longest": longest}

    def __call__(self, lengths, longest):
        hidden = np.full((len(lengths), longest, 2), -1.0)
        hidden[:, 0, 0], hidden[:, 0, 1] = lengths, len(lengths)
        return SimpleNamespace(last_hidden_state=hidden)


def test_embed_batches_by_length_and_keeps_the_order():
    encoder, sizes = Encoder(), [5, 30, 1, 7, 2]
    texts = ["x" * size for size in sizes]
    how = {"batch_size": 2, "max_length": 9}
    x = text.embed(texts, encoder.tokenizer, encoder, **how)
    assert x.dtype == np.float32 and x[:, 0].tolist() == [5, 9, 1, 7, 2]
    assert encoder.batches == [2, 2, 1] and x[1, 1] == 1
    with pytest.raises(ValueError, match="batch_size=0"):
        text.embed(texts, encoder.tokenizer, encoder, batch_size=0)


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


def test_an_encoder_is_used_from_the_command(tmp_path, monkeypatch):
    class Short(Encoder):
        def tokenizer(self, texts, **how):
            return super().tokenizer(texts, **how | {"max_length": 9})

    encoder, out = Short(), tmp_path / "out.npz"
    monkeypatch.setattr(text, "load_encoder", lambda _: (encoder.tokenizer, encoder))
    path = write(tmp_path / "t.csv", ROWS[:4])
    assert (
        text.main(arguments(path, out, "--encoder=models/some", "--batch_size=2")) == 0
    )
    assert sources.load(out).x[:, 0].tolist() == [9, 7, 6]
    with np.load(out) as kept:
        assert str(kept["features"]) == "first token of some"


def command(*argv):
    child = [sys.executable, "-m", "sparsefl_jax.data.text", *argv]
    return subprocess.run(child, capture_output=True, text=True)


def test_the_real_command_refuses_in_one_line(tmp_path):
    path = write(tmp_path / "t.csv")
    done = command(*arguments(path, tmp_path / "o.npz", "--encoder=no/such/model"))
    assert done.returncode == 2 and not done.stdout
    assert done.stderr == (
        "error: encoder='no/such/model' is not a folder with a config.json; expected "
        "one that holds a Hugging Face encoder and its tokenizer\n"
    )


def test_what_is_missing_is_one_line(tmp_path, monkeypatch, capsys):
    path, out = write(tmp_path / "t.csv"), tmp_path / "o.npz"
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hashing = "--hash=8"
    for given, told in [
        (arguments(path, out, f"--encoder={tmp_path}"), "'sparsefl_jax[text]'"),
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
