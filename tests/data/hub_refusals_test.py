"""What leaves a choice in a data set of Hugging Face, or is damaged, is one line."""

import pytest

from sparsefl_jax.data import sources
from tests.hub_layouts import (
    FLOAT,
    INT,
    LABEL,
    LAYOUTS,
    datasets,
    grey,
    isolate,
    parts_of,
    picture,
    table,
    write,
)
from tests.refusals import refused


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    return isolate(tmp_path, monkeypatch)


IMAGE = datasets.Image()


REFUSED = {  # what is told: the layout, and options
    "name hf.image, hf.text or hf.table, one of text (text), date (text), user": (
        LAYOUTS["twitter"],
        {},
    ),
    "name hf.label, one of a (image), y (float)": (
        table(a=(IMAGE, grey(2)), y=(FLOAT, [0, 1])),
        {},
    ),
    "split 'train': row 0: 'a': there is none": (
        table(a=(IMAGE, [None, *grey(1)]), y=LABEL),
        {},
    ),
    "x has values that are not finite": (table(a=(FLOAT, [1, None]), y=LABEL), {}),
    "split 'train': it has samples without a label": (
        table(a=(FLOAT, [1, 2]), y=(INT, [-1, 1])),
        {},
    ),
    "split 'test': it has samples without a label": (LAYOUTS["sst2"], {"test": "test"}),
    "its lists differ in length": (
        table(a=(datasets.List(INT), [[1], [1, 2]]), y=LABEL),
        {},
    ),
    "but the first image has (4, 4, 1): resize them": (
        table(a=(IMAGE, [picture(0, 4, 4), picture(0, 4, 5)]), y=LABEL),
        {},
    ),
    "hf.label='lable' (did you mean 'label'?)": (LAYOUTS["mnist"], {"label": "lable"}),
    "hf.image='label': type='classes', expected one of image": (
        LAYOUTS["mnist"],
        {"image": "label"},
    ),
}


@pytest.mark.parametrize("told", REFUSED)
def test_what_leaves_a_choice_or_is_broken_is_one_line(told, place):
    layout, hf = REFUSED[told]
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
