"""Data sets of Hugging Face: layouts, columns, splits and caches; what is refused."""

import shutil

import numpy as np
import pytest

from sparsefl_jax.data import characters, sources
from tests.refusals import refused

datasets = pytest.importorskip("datasets", reason="needs the extra [hf]")
from PIL import Image  # noqa: E402

TEXT, INT, FLOAT = (datasets.Value(kind) for kind in ("string", "int64", "float32"))
INT32, IMAGE = datasets.Value("int32"), datasets.Image()


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
        {"image": IMAGE, "writer_id": TEXT, "hsf_id": INT} | {"character": classes(62)},
        {"train": (grey(4), ["f1", "f0", "f1", "f1"], [0, 0, 0, 0], [61, 3, 4, 5])},
    ),
    "shakespeare": (
        {"character_id": TEXT, "x": TEXT, "y": TEXT},
        {"train": (["PUCK", "BOTTOM"], [SPEECH[:80], SPEECH[3:] + "fer"], ["r", "i"])},
    ),
    "twitter": (
        {"text": TEXT, "date": TEXT, "user": TEXT, "sentiment": INT32, "query": TEXT},
        {
            "train": (["sad", "joy", "sob"], ["d"] * 3, ["b", "a", "b"], [0, 4, 0])
            + (["q"] * 3,),
            "test": (["so so"], ["d"], ["c"], [2], ["q"]),
        },
    ),
    "mnist": (
        {"image": IMAGE, "label": classes(10)},
        {"train": (grey(3), [5, 0, 4]), "test": (grey(1), [7])},
    ),
    "cifar100": (
        {"img": IMAGE, "fine_label": classes(100)} | {"coarse_label": classes(20)},
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
HUB = {
    "femnist": "flwrlabs/femnist",
    "shakespeare": "flwrlabs/shakespeare",
    "twitter": "stanfordnlp/sentiment140",
    "mnist": "ylecun/mnist",
    "cifar100": "uoft-cs/cifar100",
    "sst2": "stanfordnlp/sst2",
}


def parts_of(layout):
    """Returns the splits of a layout."""
    (features, splits), parts = layout, datasets.DatasetDict()
    for split, values in splits.items():
        columns = dict(zip(features, values, strict=True))
        kinds = datasets.Features(features)
        parts[split] = datasets.Dataset.from_dict(columns, features=kinds)
    return parts


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
    organisation, _, short = HUB[name].partition("/")
    files = (place / "source" / "data").glob("*.parquet")
    builder = Parquet(
        cache_dir=str(place / "made"),
        dataset_name=short,
        hash="0" * 40,
        data_files={f.name.split("-")[0]: [str(f)] for f in files},
    )
    builder.download_and_prepare()
    # The library refuses files that are not of the hub, so their place is made here.
    entry = place / f"hf/{organisation}___{short}/default/0.0.0/{'0' * 40}"
    shutil.move(builder.cache_dir, entry)


def table(**columns):
    """Returns a layout of these columns: a feature and its values each."""
    features = {name: feature for name, (feature, _) in columns.items()}
    return features, {"train": tuple(values for _, values in columns.values())}


LABEL = (classes(2), [0, 1])


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Gives a test caches of its own, no network, and no data set of TFDS."""
    monkeypatch.setenv("SPARSEFL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()
    return tmp_path


SHAPES = {
    "femnist": ((4, 28, 28, 1), [61, 3, 4, 5], 62, 0),
    "mnist": ((3, 28, 28, 1), [5, 0, 4], 10, 1),
    "cifar100": ((2, 32, 32, 3), [19, 29], 100, 1),
    "sst2": ((3, 768), [1, 0, 1], 2, 1),
}


@pytest.mark.parametrize("name", SHAPES)
def test_names_are_read_from_the_cache_of_the_library(name, place):
    into_cache(place, name)
    label = {"label": "fine_label"} if name == "cifar100" else {}
    data = sources.load(f"hf:{HUB[name]}", hf=label)
    shape, labels, num_classes, num_test = SHAPES[name]
    assert data.x.shape == shape and data.y.tolist() == labels
    assert data.num_classes == num_classes and len(data.x_test) == num_test
    assert data.name == name
    if data.x.ndim == 4:
        assert data.x.dtype == np.uint8
        drawn = np.asarray(picture(1, *shape[1:3], *([3] if shape[3] == 3 else [])))
        np.testing.assert_array_equal(data.x[1].squeeze(), drawn)


def test_a_grey_image_among_colours_has_three_equal_channels(place):
    """TinyImageNet has some, and a split `valid` instead of a test set."""
    features = {"image": IMAGE, "label": classes(200)}
    pictures = [picture(0, 8, 8, 3), picture(1, 8, 8)]
    tests = [picture(2, 8, 8, 3), *pictures[1:]]
    rows = {"train": (pictures, [199, 3]), "valid": (tests, [0, 1])}
    data = sources.load(write(place / "tiny", (features, rows)), hf={"test": "valid"})
    assert data.x.shape == data.x_test.shape == (2, 8, 8, 3)
    assert data.num_classes == 200
    grey = np.asarray(pictures[1])[..., None]
    for read in (data.x[1], data.x_test[1]):
        np.testing.assert_array_equal(read, np.broadcast_to(grey, (8, 8, 3)))


def test_users_come_with_the_samples(place):
    into_cache(place, "femnist")
    assert sources.load("femnist").users.tolist() == [1, 0, 1, 1]


def test_tweets_have_users_in_both_splits_and_become_tokens_of_any_length(place):
    """The cache holds what each tokenizer gave."""
    into_cache(place, "twitter")
    data = sources.load("twitter")
    assert data.users.tolist() == [1, 0, 1] and data.users_test.tolist() == [2]
    assert data.y_test.tolist() == [1] and data.x.shape == (3, 768)
    for length in (3, 4, 3):
        data = sources.load("twitter", tokenizer="words", max_tokens=length)
        assert data.x.shape == (3, length) and data.x.dtype == np.int32
        assert (data.x > 0).sum(1).tolist() == [2, 2, 2]


def test_texts_with_a_next_character_are_tokens(place):
    into_cache(place, "shakespeare")
    data = sources.load("shakespeare")
    said = ["".join(characters.ALPHABET[c] for c in row) for row in data.y]
    assert said[0] == SPEECH[1:80] + "r" and said[1][-3:] == "eri"
    assert data.x.shape == (2, 80) and data.users.tolist() == [1, 0]


@pytest.mark.parametrize("way", ["folder", "name", "file", "saved", "split"])
def test_files_of_ones_own_are_read_in_every_form(way, place, monkeypatch):
    folder = place / "parquet"  # which `load_dataset` would take for its builder
    name = write(folder, LAYOUTS["mnist"])
    parts = parts_of(LAYOUTS["mnist"])
    if way == "name":
        monkeypatch.chdir(place)
        name = "hf:parquet"
    elif way == "file":
        name = f"hf:{next(folder.glob('data/train*'))}"
    elif way == "saved":
        parts.save_to_disk(folder / "saved")
        name = f"hf:{folder / 'saved'}"
    elif way == "split":
        parts["train"].save_to_disk(folder / "saved")
        name = f"hf:{folder / 'saved'}"
    data = sources.load(name)
    assert data.y.tolist() == [5, 0, 4]
    assert len(data.x_test) == (1 if way in ("folder", "name", "saved") else 0)
    np.testing.assert_array_equal(data.x[2, ..., 0], np.asarray(picture(2, 28, 28)))


FLOATS = {"a": (FLOAT, [1, 2]), "b": (FLOAT, [3, 4])}
INTS = {"a": (INT, [1, 2]), "id": (INT, [7, 8]), "b": (INT, [3, 4])}
TABLES = {
    "floats": table(**FLOATS, y=LABEL),
    "integers that are named": table(**INTS, y=LABEL),
    "a list": table(v=(datasets.List(FLOAT), [[1, 3], [2, 4]]), y=LABEL),
    "labels as texts": table(**FLOATS, mood=(TEXT, ["bad", "good"])),
    "labels as numbers": table(**FLOATS, n=(INT, [10, 70])),
}
COLUMNS = {
    "integers that are named": {"table": ("a", "b")},
    "labels as texts": {"label": "mood"},
}


@pytest.mark.parametrize("case", TABLES)
def test_tables(case, place):
    name = write(place / "mine", TABLES[case])
    data = sources.load(name, hf=COLUMNS.get(case, {}))
    assert data.x.tolist() == [[1, 3], [2, 4]] and data.y.tolist() == [0, 1]
    assert data.num_classes == 2 and data.users is None


def test_splits_are_named_where_there_is_a_choice(place):
    features, rows = LAYOUTS["mnist"]
    layout = features, {"day": rows["train"], "night": rows["test"]}
    parts_of(layout).save_to_disk(place / "saved")
    name = f"hf:{place / 'saved'}"
    with pytest.raises(ValueError, match="hf.train='train', expected one of day, ni"):
        sources.load(name)
    assert not len(sources.load(name, hf={"train": "day"}).x_test)
    data = sources.load(name, hf={"train": "night", "test": "day"})
    assert data.y.tolist() == [7] and data.y_test.tolist() == [5, 0, 4]


def test_what_is_not_there_is_refused(place):
    refused(lambda: sources.load("hf:some/thing"), "'hf:some/thing' cannot be used: ")
    refused(lambda: sources.load("hf:./thing"), "'hf:./thing' cannot be used: ")
    refused(lambda: sources.load("hf:csv"), "expected ORGANISATION/NAME, a folder or")


LISTS = datasets.List(INT), [[1], [1, 2]]
UNEQUAL = IMAGE, [picture(0, 4, 4), picture(0, 4, 5)]
REFUSED = [
    (LAYOUTS["twitter"], {}, "name hf.image, hf.text or hf.table, one of text (text)"),
    (table(a=(IMAGE, [None, *grey(1)]), y=LABEL), {}, "row 0: 'a': there is none"),
    (LAYOUTS["sst2"], {"test": "test"}, "split 'test': it has samples without a label"),
    (table(a=LISTS, y=LABEL), {}, "its lists differ in length"),
    (
        table(a=UNEQUAL, y=LABEL),
        {},
        "images are L (2), 4 x 4 (1), 4 x 5 (1), expected",
    ),
    (LAYOUTS["mnist"], {"label": "lable"}, "hf.label='lable' (did you mean 'label'?)"),
    (LAYOUTS["mnist"], {"image": "label"}, "type='classes', expected one of image"),
]


@pytest.mark.parametrize(
    "layout, hf, told", REFUSED, ids=[told for *_, told in REFUSED]
)
def test_what_leaves_a_choice_or_is_broken_is_one_line(layout, hf, told, place):
    name = write(place / "mine", layout)
    refused(lambda: sources.load(name, hf=hf), told)


def damaged(place, what):
    name = write(place / "mine", LAYOUTS["mnist"])
    [file] = (place / "mine" / "data").glob("train*")
    if what == "image":
        rows = datasets.Dataset.from_dict(
            {"image": [{"bytes": b"no image", "path": None}], "label": [1]},
            features=datasets.Features(LAYOUTS["mnist"][0]),
        )
        rows.to_parquet(file)
        return name
    if what == "arrow":
        parts_of(LAYOUTS["mnist"]).save_to_disk(place / what)
        [file] = (place / what / "train").glob("*.arrow")
    file.write_bytes(b"" if what == "empty" else file.read_bytes()[:300])
    (place / "hollow").mkdir()
    return name if what in ("cut", "empty") else f"hf:{place / what}"


@pytest.mark.parametrize("what", ("cut", "empty", "image", "arrow", "hollow", "absent"))
def test_damaged_files_are_one_line(what, place):
    name = damaged(place, what)
    told = "split 'train': row 0: 'image': cannot" if what == "image" else ""
    refused(lambda: sources.load(name), told or f"data set '{name}'")
