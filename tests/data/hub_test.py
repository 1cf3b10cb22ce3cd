"""Data sets of Hugging Face: layouts, columns, splits and caches; what is refused."""

import json
import shutil
import zlib

import numpy as np
import pytest

from sparsefl_jax import report
from sparsefl_jax.data import characters, sources
from sparsefl_jax.runs import experiment, records
from tests.refusals import refused
from tests.tiny import tiny_config

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
    "labels as numbers": {"label": "n"},
}


SPECIES = ["lynx", "puma", "lynx", "puma", "lynx", "puma"]
ROWS = {  # lines of a CSV file, without what its label is
    "id": [1, 2, 3, 4, 5, 6],
    "size": [0.5, 1.5, 0.5, 1.5, 0.5, 1.5],
    "year": [2007, 2008, 2007, 2008, 2007, 2008],
    "sex": ["m", "f", "f", "m", "m", "f"],
}


def csv(place, sep=",", head="", **columns):
    """Writes a CSV file."""
    lines = zip(*columns.values(), strict=True)
    rows = [head or sep.join(columns), *(sep.join(map(str, row)) for row in lines)]
    (place / "mine.csv").write_text("\n".join(rows), encoding="utf-8")
    return f"hf:{place / 'mine.csv'}"


@pytest.mark.parametrize("sep, head", [(",", ""), (";", ""), ("\t", ""), (",", "bom")])
def test_an_id_or_a_year_is_no_label_and_categories_are_one_hot(place, sep, head):
    head = head and "\ufeffid,size,year,sex,species"
    name = csv(place, sep, head, **ROWS, species=[f'"{s}\n"' for s in SPECIES])
    told = "it: --config.hf.label=sex (2 values), --config.hf.label=species (2 values)"
    refused(lambda: sources.load(name), told)
    data = sources.load(name, hf={"label": "species"})
    assert data.columns == (
        "label species (2 classes); features size, year, sex; left out id"
    )
    female = [0, 1, 1, 0, 0, 1]
    wanted = [ROWS["size"], ROWS["year"], female, [1 - f for f in female]]
    assert data.x.T.tolist() == wanted
    assert data.numeric.tolist() == [True, True, False, False]
    assert data.y.tolist() == [0, 1] * 3


def test_a_run_says_which_columns_it_read(place, capsys, monkeypatch):
    """The plan, `config.json`, from which a run can begin again, and the page."""
    config = tiny_config(place)
    config.dataset = csv(place, **ROWS, species=SPECIES)
    config.hf = {"label": "species", "columns": "those of an earlier run"}
    config.normalize, config.test_split, config.first_stage = True, "within", {}
    config.algorithm, config.num_clients = {"name": "fedavg"}, 2
    config.cohort_size = config.num_rounds = 2
    monkeypatch.setattr(records, "draw", report.write_page)
    experiment.run(config, place / "run")
    told = "label species (2 classes); features size, year, sex; left out id"
    assert f"columns   {told}; 2 columns standardised" in capsys.readouterr().err
    assert json.loads((place / "run/config.json").read_text())["hf"]["columns"] == told
    assert told in (place / "run/report.html").read_text()


GERMAN = ["1.234,56", "3,5", "-12,25", "2.000.000", "7", "0,5"]


def test_decimal_commas_and_points_between_thousands_are_read(place):
    days = [f"{day}.05.2021" for day in (12, 13) * 3]
    name = csv(place, ";", size=GERMAN, weight=["3,5", "4"] * 3, sex=["m", "f"] * 3)
    data = sources.load(name, hf={"label": "sex"})
    wanted = [[1234.56, 3.5, -12.25, 2e6, 7, 0.5], [3.5, 4] * 3]
    np.testing.assert_array_equal(data.x.T, np.float32(wanted))
    assert data.numeric.tolist() == [True, True]
    name = csv(place, ";", size=["3,5", "4"] * 3, day=days, sex=["m", "f"] * 3)
    data = sources.load(name, hf={"label": "sex", "table": "size"})
    assert data.x[:, 0].tolist() == [3.5, 4] * 3 and "left out day" in data.columns
    for other, told in (days, "1.234,56 and 12.05.2021"), (["3.5", "4"] * 3, "and 3.5"):
        name = csv(place, ";", size=GERMAN, other=other, sex=["m", "f"] * 3)
        refused(lambda name=name: sources.load(name, hf={"label": "sex"}), told)


def test_numbers_are_no_classes(place):
    name = csv(place, size=[1.5, 2, 4, 3] * 30, price=[i + 0.5 for i in range(120)])
    told = "y is float64 (120,), expected integers or texts [n], or integers [n, T]"
    refused(lambda: sources.load(name, hf={"label": "price"}), told)
    name = csv(place, size=[1.5, 2, 4, 3] * 30, price=range(120))
    with pytest.warns(UserWarning, match="120 classes in 120 samples; .*regression"):
        sources.load(name, hf={"label": "price"})


def test_many_categories_are_hashed_and_globs_name_columns(place):
    city = [f"city {i // 2}" for i in range(140)]
    name = csv(place, px1=range(140), px2=[0] * 140, city=city, y=[0, 1] * 70)
    data = sources.load(name, hf={"label": "y", "table": ("px*", "city")})
    assert data.x.shape == (140, 2 + 64) and data.x[7, :2].tolist() == [7, 0]
    place_of = zlib.crc32(b"city 3") % 64
    assert np.flatnonzero(data.x[7, 2:]).tolist() == [place_of]


def test_missing_values_are_counted_or_filled_and_lines_without_names_are_told(place):
    power = ["?", 1, 4, 2, 9, "?"]
    name = csv(place, power=power, sex=["", "f", "f", "m", "m", "f"], kind=SPECIES)
    given = {"label": "kind", "table": ("power", "sex")}
    told = "missing: power (2), sex (1); remove these rows, or set hf.fill=median"
    refused(lambda: sources.load(name, hf=given), told)
    data = sources.load(name, hf=given | {"fill": "median"})
    assert data.x[:, 0].tolist() == [3, 1, 4, 2, 9, 3]
    assert data.x[0].tolist() == [3, 0, 0]  # the median of 1, 2, 4, 9; neither f nor m
    name = csv(place, pool=["", "", "", "", 7, 9.5], sex=list("fmfmfm"), kind=SPECIES)
    data = sources.load(name, hf={"label": "kind", "fill": "median"})
    assert data.x[0].tolist() == [8.25, 1, 0] and data.numeric.sum() == 1
    name = csv(place, head="5.1,3.5,lynx", a=[1, 2], b=[3, 4], c=["x", "y"])
    refused(lambda: sources.load(name), "mine.csv begins with 5.1, 3.5, lynx: expected")


def test_a_text_of_one_length_is_classified_unless_next_tokens_are_asked_for(place):
    name = csv(place, kind=["+", "-", "+"], bases=["acg" * 40, "gta" * 40, "ttt" * 40])
    given = {"label": "kind", "text": "bases"}
    data = sources.load(name, hf=given)
    assert data.x.shape == (3, 768) and data.y.tolist() == [0, 1, 0]
    data = sources.load(name, hf=given, task="next_token")
    said = ["".join(characters.ALPHABET[c] for c in row) for row in data.y]
    assert data.x.shape == (3, 120) and said[1] == "ta" + "gta" * 39 + "-"
    name = csv(place, kind=["+", "-", "+"], size=[0.5, 2.5, 1.5])
    load = lambda: sources.load(name, hf={"label": "kind"}, task="next_token")  # noqa: E731
    refused(load, "task='next_token' has no effect here")


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
    (
        LAYOUTS["twitter"],
        {},
        "name it: --config.hf.label=user (2 values), --config.",
    ),
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
