"""Data sets in the layouts of the Hugging Face hub, of a few rows each."""

import shutil

import numpy as np
import pytest

datasets = pytest.importorskip("datasets", reason="needs the extra [hf]")
from PIL import Image  # noqa: E402

TEXT, INT, FLOAT = (datasets.Value(kind) for kind in ("string", "int64", "float32"))
INT32 = datasets.Value("int32")


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
    "twitter": (
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
    entry = (
        place / "hf" / f"{organisation}___{short}" / "default" / "0.0.0" / ("0" * 40)
    )
    shutil.move(builder.cache_dir, entry)


def table(**columns):
    """Returns a layout of these columns: a feature and its values each."""
    features = {name: feature for name, (feature, _) in columns.items()}
    return features, {"train": tuple(values for _, values in columns.values())}


LABEL = (classes(2), [0, 1])


def isolate(tmp_path, monkeypatch):
    """Gives a test caches of its own, no network, and no data set of TFDS."""
    monkeypatch.setenv("SPARSEFL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()
    return tmp_path
