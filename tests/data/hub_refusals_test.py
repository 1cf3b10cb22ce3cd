"""What leaves a choice in a data set of Hugging Face, or is damaged, is one line."""

import pytest

from sparsefl_jax.data import sources
from tests.hub_layouts import (
    FLOAT,
    INT,
    LABEL,
    LAYOUTS,
    TEXT,
    classes,
    datasets,
    grey,
    isolate,
    parts_of,
    picture,
    table,
    write,
)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    return isolate(tmp_path, monkeypatch)


IMAGE = datasets.Image()
REFUSED = {  # what is told: the layout
    "the samples may be text (text), date (text), user": LAYOUTS["twitter"],
    "the label may be a (image), y (float): name it as hf.label": table(
        a=(IMAGE, grey(2)), y=(FLOAT, [0, 1])
    ),
    "a (integer), b (float)": table(a=(INT, [1, 2]), b=(FLOAT, [1, 2]), y=LABEL),
    "as hf.image, hf.text or hf.table": table(
        a=(TEXT, "ab"), b=(FLOAT, [1, 2]), y=LABEL
    ),
    "row 0 of split": table(a=(IMAGE, [None, *grey(1)]), y=LABEL),
    "the table of split 'train': a number is missing": table(
        a=(FLOAT, [1, None]), y=LABEL
    ),
    "label 'y' of split 'train' has -1": table(a=(FLOAT, [1, 2]), y=(INT, [-1, 1])),
    "no sample with a label": table(a=(FLOAT, [1, 2]), y=(classes(2), [-1, -1])),
    "the table of split 'train': its lists differ in length": table(
        a=(datasets.List(INT), [[1], [1, 2]]), y=LABEL
    ),
    "but the first image has (4, 4, 1): resize them to one size": table(
        a=(IMAGE, [picture(0, 4, 4), picture(0, 4, 5)]), y=LABEL
    ),
}
OPTIONS = {  # what is told: the name of a layout, and options
    "hf.label='lable' (did you mean 'label'?)": ("mnist", {"label": "lable"}),
    "hf.image='label' is of type classes": ("mnist", {"image": "label"}),
    "hf.user='image' is of type image": ("femnist", {"user": "image"}),
    "hf.hash=9 has no effect here": ("mnist", {"hash": 9}),
    "hf.test='dev'": ("mnist", {"test": "dev"}),
    "hf.test='test' has no sample with a label": ("sst2", {"test": "test"}),
}


@pytest.mark.parametrize("told", [*REFUSED, *OPTIONS])
def test_what_leaves_a_choice_or_is_broken_is_one_line(told, place):
    known, hf = OPTIONS.get(told, ("", {}))
    name = write(place / "mine", LAYOUTS[known] if known else REFUSED[told])
    with pytest.raises(ValueError) as caught:
        sources.load(name, hf=hf)
    assert told in str(caught.value) and "\n" not in str(caught.value)
    assert str(caught.value).startswith((f"data set '{name}' cannot be used: ", "x "))


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
    (place / "mine.txt").write_text("a")
    return name if what in ("cut", "empty") else f"hf:{place / what}"


DAMAGES = ("cut", "empty", "image", "arrow", "hollow", "mine.txt", "absent")


@pytest.mark.parametrize("what", DAMAGES)
def test_damaged_files_are_one_line(what, place):
    name = damaged(place, what)
    with pytest.raises(ValueError, match=f"^data set '{name}'") as caught:
        sources.load(name)
    assert "\n" not in str(caught.value)
    assert what != "image" or "row 0 of split 'train': 'image': cannot" in str(
        caught.value
    )
