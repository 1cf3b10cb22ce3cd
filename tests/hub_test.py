"""Data sets of Hugging Face: layouts, columns, splits, refusals, caches, and a run."""

import io
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from sparsefl_jax.data import characters, hub, hub_samples, named, prepare, sources

datasets = pytest.importorskip("datasets", reason="needs the extra [hf]")
from PIL import Image  # noqa: E402

ROOT = Path(__file__).parent.parent
RNG = np.random.default_rng(0)
TEXT, INT, FLOAT = (datasets.Value(kind) for kind in ("string", "int64", "float32"))
INT32 = datasets.Value("int32")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A cache of this test alone, no network, and no data set of TFDS."""
    monkeypatch.setenv("SPARSEFL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()
    return tmp_path


def picture(seed, *shape):
    """An image whose pixels a test can draw again."""
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8))


def classes(count):
    return datasets.ClassLabel(names=[f"class {i}" for i in range(count)])


def grey(count):
    return [picture(i, 28, 28) for i in range(count)]


def colour(count):
    return [picture(i, 32, 32, 3) for i in range(count)]


SPEECH = (
    "to be or not to be that is the question whether tis nobler in the mind to suffer"
)
# Per name: columns and values of the split `train`, then of the other splits.
LAYOUTS = {
    "femnist": (
        {"image": datasets.Image(), "writer_id": TEXT, "hsf_id": INT}
        | {"character": classes(62)},
        {"train": (grey(4), ["f1", "f0", "f1", "f1"], [0, 0, 0, 0], [61, 3, 4, 5])},
    ),
    "shakespeare": (
        {"character_id": TEXT, "x": TEXT, "y": TEXT},
        {"train": (["PUCK", "BOTTOM"], [SPEECH[:80], SPEECH[3:] + "fer"], ["r", "i"])},
    ),
    "sentiment140": (
        {"text": TEXT, "date": TEXT, "user": TEXT, "sentiment": INT32, "query": TEXT},
        {
            "train": (["sad", "joy", "sob"], ["d"] * 3, ["b", "a", "b"], [0, 4, 0])
            + (["q"] * 3,),
            "test": (["so so"], ["d"], ["c"], [2], ["q"]),
        },
    ),
    "mnist": (
        {"image": datasets.Image(), "label": classes(10)},
        {"train": (grey(3), [5, 0, 4]), "test": (grey(1), [7])},
    ),
    "cifar10": (
        {"img": datasets.Image(), "label": classes(10)},
        {"train": (colour(3), [6, 9, 9]), "test": (colour(1), [3])},
    ),
    "cifar100": (
        {"img": datasets.Image(), "fine_label": classes(100)}
        | {"coarse_label": classes(20)},
        {"train": (colour(2), [19, 29], [11, 15]), "test": (colour(1), [49], [10])},
    ),
    "sst2": (
        {"idx": INT32, "sentence": TEXT, "label": classes(2)},
        {
            "train": ([0, 1, 2], ["good film", "bad", "fine"], [1, 0, 1]),
            "validation": ([0], ["so good"], [1]),
            "test": ([0, 1], ["secret", "one"], [-1, -1]),
        },
    ),
}
LAYOUTS["fashion_mnist"] = LAYOUTS["mnist"]


def parts_of(layout):
    """Returns the splits of a layout."""
    features, splits = layout
    return datasets.DatasetDict(
        {
            split: datasets.Dataset.from_dict(
                dict(zip(features, values, strict=True)),
                features=datasets.Features(features),
            )
            for split, values in splits.items()
        }
    )


def write(folder, layout):
    """Writes a layout as the hub has it, in parquet files."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for split, rows in parts_of(layout).items():
        rows.to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")
    return f"hf:{folder}"


def into_cache(place, name):
    """Puts a named data set where the library's cache keeps it once downloaded."""
    from datasets.packaged_modules.parquet.parquet import Parquet

    write(place / "source", LAYOUTS[name])
    organisation, _, short = named.NAMED[name].hub.partition("/")
    files = (place / "source" / "data").glob("*.parquet")
    builder = Parquet(
        cache_dir=str(place / "made"),
        dataset_name=short,
        hash="0" * 40,
        data_files={f.name.split("-")[0]: [str(f)] for f in files},
    )
    builder.download_and_prepare()
    # The library refuses files that are not of the hub, so their place is made here.
    entry = (
        place / "hf" / f"{organisation}___{short}" / "default" / "0.0.0" / ("0" * 40)
    )
    shutil.move(builder.cache_dir, entry)


SHAPES = {
    "femnist": ((4, 28, 28, 1), [61, 3, 4, 5], 62, 0),
    "mnist": ((3, 28, 28, 1), [5, 0, 4], 10, 1),
    "fashion_mnist": ((3, 28, 28, 1), [5, 0, 4], 10, 1),
    "cifar10": ((3, 32, 32, 3), [6, 9, 9], 10, 1),
    "cifar100": ((2, 32, 32, 3), [19, 29], 100, 1),
    "sst2": ((3, 768), [1, 0, 1], 2, 1),
    "sentiment140": ((3, 768), [0, 2, 0], 3, 1),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_name_reads_the_cache_of_the_library(name, place):
    into_cache(place, name)
    data = sources.load(name)
    shape, labels, num_classes, num_test = SHAPES[name]
    assert data.x.shape == shape and data.y.tolist() == labels
    assert data.num_classes == num_classes and len(data.x_test) == num_test
    assert data.name == name
    if data.x.ndim == 4:
        assert data.x.dtype == np.uint8
        drawn = np.asarray(picture(1, *shape[1:3], *([3] if shape[3] == 3 else [])))
        np.testing.assert_array_equal(data.x[1].squeeze(), drawn)


def test_users_come_with_the_samples(place):
    into_cache(place, "femnist")
    assert sources.load("femnist").users.tolist() == [1, 0, 1, 1]
    data = sources.load("hf:flwrlabs/femnist", hf={"user": "hsf_id"})
    assert data.users.tolist() == [0] * 4 and data.name == "femnist"


def test_tweets_have_users_in_both_splits_and_three_classes(place):
    into_cache(place, "sentiment140")
    data = sources.load("twitter", hf={"hash": 32})
    assert data.users.tolist() == [1, 0, 1] and data.users_test.tolist() == [2]
    assert data.y_test.tolist() == [1] and data.x.shape == (3, 32)


def test_texts_with_a_next_character_are_tokens(place):
    into_cache(place, "shakespeare")
    data = sources.load("shakespeare")
    said = ["".join(characters.ALPHABET[c] for c in row) for row in data.y]
    assert said[0] == SPEECH[1:80] + "r" and said[1][-3:] == "eri"
    assert data.x.shape == (2, 80) and data.users.tolist() == [1, 0]


@pytest.mark.parametrize("way", ["folder", "file", "saved", "saved split"])
def test_files_of_ones_own_are_read_in_every_form(way, place):
    folder = place / "mine"
    name = write(folder, LAYOUTS["mnist"])
    parts = parts_of(LAYOUTS["mnist"])
    if way == "file":
        name = f"hf:{next(folder.glob('data/train*'))}"
    elif way == "saved":
        parts.save_to_disk(folder / "saved")
        name = f"hf:{folder / 'saved'}"
    elif way == "saved split":
        parts["train"].save_to_disk(folder / "saved")
        name = f"hf:{folder / 'saved'}"
    data = sources.load(name)
    assert data.y.tolist() == [5, 0, 4]
    assert len(data.x_test) == (1 if way in ("folder", "saved") else 0)
    np.testing.assert_array_equal(data.x[2, ..., 0], np.asarray(picture(2, 28, 28)))


def table(**columns):
    """Returns a layout of these columns: a feature and its values each."""
    features = {name: feature for name, (feature, _) in columns.items()}
    return features, {"train": tuple(values for _, values in columns.values())}


LABEL = (classes(2), [0, 1])
TABLES = {
    "floats": (table(a=(FLOAT, [1, 2]), b=(FLOAT, [3, 4]), y=LABEL), {}),
    "integers that are named": (
        table(a=(INT, [1, 2]), id=(INT, [7, 8]), b=(INT, [3, 4]), y=LABEL),
        {"table": ("a", "b")},
    ),
    "a list": (table(v=(datasets.List(FLOAT), [[1, 3], [2, 4]]), y=LABEL), {}),
    "labels as texts": (
        table(a=(FLOAT, [1, 2]), b=(FLOAT, [3, 4]), mood=(TEXT, ["bad", "good"])),
        {"label": "mood"},
    ),
    "labels as numbers": (
        table(a=(FLOAT, [1, 2]), b=(FLOAT, [3, 4]), n=(INT, [10, 70])),
        {},
    ),
}


@pytest.mark.parametrize("case", TABLES)
def test_tables(case, place):
    layout, hf = TABLES[case]
    data = sources.load(write(place / "mine", layout), hf=hf)
    assert data.x.tolist() == [[1, 3], [2, 4]] and data.y.tolist() == [0, 1]
    assert data.num_classes == 2 and data.users is None


IMAGES = (datasets.Image(), grey(2))
RED = (datasets.Image(), [*grey(1), *colour(1)])
REFUSED = [
    (
        LAYOUTS["cifar100"],
        {},
        "fine_label (classes), coarse_label (classes): name",
    ),
    (
        LAYOUTS["sentiment140"],
        {},
        "text (text), date (text), user (text), query (te",
    ),
    (LAYOUTS["shakespeare"], {}, "the label may be character_id (text), x (text), y"),
    (table(a=IMAGES, b=IMAGES, y=LABEL), {}, "the samples may be a (image), b (image)"),
    (
        table(a=IMAGES, y=(FLOAT, [0, 1])),
        {},
        "no column for the label: a (image), y",
    ),
    (table(a=(INT, [1, 2]), b=(FLOAT, [1, 2]), y=LABEL), {}, "a (integer), b (float)"),
    (
        table(a=(TEXT, "ab"), b=(FLOAT, [1, 2]), y=LABEL),
        {},
        "as hf.text or hf.table",
    ),
    (LAYOUTS["mnist"], {"label": "lable"}, "hf.label='lable' (did you mean 'label'?)"),
    (
        LAYOUTS["mnist"],
        {"image": "label"},
        "hf.image='label' is of type classes",
    ),
    (LAYOUTS["mnist"], {"hash": 9}, "hf.hash=9 is read by nothing here"),
    (LAYOUTS["mnist"], {"test": "dev"}, "hf.test='dev'"),
    (LAYOUTS["sst2"], {"test": "test"}, "hf.test='test' has no sample with a label"),
    (LAYOUTS["femnist"], {"user": "image"}, "hf.user='image' is of type image"),
    (table(a=RED, y=LABEL), {}, "row 1 of split 'train': 'a' is an image of shape (32"),
    (
        table(a=(datasets.Image(), [None, *grey(1)]), y=LABEL),
        {},
        "row 0 of split",
    ),
    (
        table(a=(FLOAT, [1, None]), y=LABEL),
        {},
        "'a' or a row after it lacks",
    ),
    (
        table(a=(FLOAT, [1, 2]), y=(INT, [-1, 1])),
        {},
        "label 'y' of split 'train' has -1",
    ),
    (table(a=(FLOAT, [1, 2]), y=(classes(2), [-1, -1])), {}, "no sample with a label"),
    (
        table(a=(datasets.List(INT), [[1], [1, 2]]), y=LABEL),
        {},
        "'a' has several lengths",
    ),
    (
        table(a=(datasets.Image(), [picture(0, 4, 4), picture(0, 4, 5)]), y=LABEL),
        {},
        "but the first is (4, 4, 1): resize them to one size",
    ),
]


@pytest.mark.parametrize("layout, hf, told", REFUSED, ids=lambda v: str(v)[:40])
def test_what_leaves_a_choice_or_is_broken_is_one_line(layout, hf, told, place):
    name = write(place / "mine", layout)
    with pytest.raises(ValueError) as caught:
        sources.load(name, hf=hf)
    assert told in str(caught.value) and "\n" not in str(caught.value)
    assert str(caught.value).startswith((f"data set '{name}' cannot be used: ", "x "))


def damaged(place, what):
    name = write(place / "mine", LAYOUTS["mnist"])
    [file] = (place / "mine" / "data").glob("train*")
    if what == "cut":
        file.write_bytes(file.read_bytes()[:300])
    elif what == "empty":
        file.write_bytes(b"")
    elif what == "image":
        rows = datasets.Dataset.from_dict(
            {"image": [{"bytes": b"no image", "path": None}], "label": [1]},
            features=datasets.Features(LAYOUTS["mnist"][0]),
        )
        rows.to_parquet(file)
    elif what == "arrow":
        parts_of(LAYOUTS["mnist"]).save_to_disk(place / "saved")
        [file] = (place / "saved" / "train").glob("*.arrow")
        file.write_bytes(file.read_bytes()[:300])
        name = f"hf:{place / 'saved'}"
    elif what == "no data":
        (place / "nothing").mkdir()
        name = f"hf:{place / 'nothing'}"
    elif what == "suffix":
        (place / "mine.txt").write_text("a")
        name = f"hf:{place / 'mine.txt'}"
    else:
        name = f"hf:{place / 'absent'}"
    return name


DAMAGES = ("cut", "empty", "image", "arrow", "no data", "suffix", "absent")


@pytest.mark.parametrize("what", DAMAGES)
def test_damaged_files_are_one_line(what, place):
    name = damaged(place, what)
    with pytest.raises(ValueError, match=f"^data set '{name}'") as caught:
        sources.load(name)
    assert "\n" not in str(caught.value)
    assert what != "image" or "row 0 of split 'train': 'image' is no image" in str(
        caught.value
    )


def test_samples_without_a_label_are_left_out_aloud(place):
    layout = table(a=(FLOAT, [1, 2, 3]), y=(classes(2), [1, -1, 0]))
    with pytest.warns(UserWarning, match="1 of 3 samples of split 'train' have no lab"):
        data = sources.load(write(place / "mine", layout))
    assert data.x.tolist() == [[1], [3]] and data.y.tolist() == [1, 0]


def test_splits_are_named_where_there_is_a_choice(place):
    features, rows = LAYOUTS["mnist"]
    layout = features, {"day": rows["train"], "night": rows["test"]}
    parts_of(layout).save_to_disk(place / "saved")
    name = f"hf:{place / 'saved'}"
    with pytest.raises(ValueError, match="its splits are day, night: name the one to"):
        sources.load(name)
    assert not len(sources.load(name, hf={"train": "day"}).x_test)
    data = sources.load(name, hf={"train": "night", "test": "day"})
    assert data.y.tolist() == [7] and data.y_test.tolist() == [5, 0, 4]


def test_files_are_decoded_once_and_again_when_they_change(place, monkeypatch):
    name = write(place / "mine", LAYOUTS["mnist"])
    before = sources.load(name)
    with monkeypatch.context() as patch:
        patch.setattr(hub_samples, "decode", None)
        again = sources.load(name)
        assert isinstance(again.x, np.memmap) and again.num_classes == 10
        np.testing.assert_array_equal(before.x, again.x)
    features, rows = LAYOUTS["mnist"]
    write(place / "mine", (features, rows | {"train": (grey(3), [1, 1, 1])}))
    assert sources.load(name).y.tolist() == [1, 1, 1]


def test_decoding_shows_its_progress(place, monkeypatch):
    shown, whole = [], hub_samples.tqdm

    def bar(*args, **given):
        shown.append(whole(*args, **given | {"disable": False, "file": io.StringIO()}))
        assert given["disable"] is None  # on a terminal alone
        return shown[-1]

    monkeypatch.setattr(hub_samples, "tqdm", bar)
    sources.load(write(place / "mine", LAYOUTS["mnist"]))
    told = [(b.desc, b.total, b.n) for b in shown]
    assert told == [("mine train", 3, 3), ("mine test", 1, 1)]


def test_what_is_not_there_says_how_to_get_it(place):
    with pytest.raises(ValueError, match="^data set 'hf:some/thing' cannot be used: "):
        sources.load("hf:some/thing")
    with pytest.raises(ValueError, match="expected ORGANISATION/NAME, a folder or"):
        sources.load("hf:mnist")
    with pytest.raises(ValueError, match="hf.label='a' is read by nothing here"):
        sources.load("mnist_sample", hf={"label": "a"})
    into_cache(place, "cifar10")
    assert prepare.prepare("hf:uoft-cs/cifar10") == "train: 3 samples, test: 1 samples"
    assert not datasets.config.HF_HUB_OFFLINE or hub.is_cached("uoft-cs/cifar10")


def test_without_the_library_the_message_names_it(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"pip install 'sparsefl_jax\[hf\]'"):
        sources.load(f"hf:{place}")
