"""Files of other projects: MedMNIST, PFLlib, LEAF and FedProx; lists of clients."""

import json
from pathlib import Path

import numpy as np
import pytest

from sparsefl_jax.data import sources
from sparsefl_jax.data.federated import federate
from tests.data.bad_data_test import Trap
from tests.refusals import refused


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSEFL_CACHE_DIR", str(tmp_path / "cache"))


def test_medmnist_leaves_its_validation_images(tmp_path):
    images = np.arange(4 * 9, dtype=np.uint8).reshape(4, 3, 3)
    splits = {"train": 0, "val": 1, "test": 2}.items()
    arrays = {f"{split}_images": images + first for split, first in splits}
    labels = {f"{split}_labels": [[first], [1], [0], [2]] for split, first in splits}
    np.savez(tmp_path / "pathmnist.npz", **arrays, **labels)
    with pytest.warns(UserWarning, match="not read: val_images, val_labels"):
        data = sources.load(tmp_path / "pathmnist.npz")
    assert data.y.tolist() == [0, 1, 0, 2] and data.y_test.tolist() == [2, 1, 0, 2]
    np.testing.assert_array_equal(data.x_test[..., 0], images + 2)


def test_pfllib_has_a_file_a_client_of_which_arrays_alone_are_unpickled(tmp_path):
    for split, first in (("train", 0), ("test", 100)):
        (tmp_path / split).mkdir()
        for client, size in {0: 2, 2: 3, 10: 4}.items():
            x = np.full((size, 2), first + client, np.float32)
            data = {"x": x, "y": np.arange(size) % 3}
            np.savez_compressed(tmp_path / split / f"{client}.npz", data=data)
    fed = federate(sources.load(tmp_path), "natural", test_split="natural")
    assert fed.train.size.tolist() == fed.test.size.tolist() == [2, 3, 4]
    assert fed.x[fed.train.index[1, 0]].tolist() == [2, 2]
    assert fed.x_test[fed.test.index[2, 0]].tolist() == [110, 110]
    assert fed.clients == ["0", "2", "10"] and fed.num_classes == 3
    np.savez(tmp_path / "train/1.npz", data={"x": Trap(tmp_path / "sprung"), "y": [0]})
    refused(lambda: sources.load(tmp_path), "expected arrays alone")
    assert not (tmp_path / "sprung").exists()


def write_leaf(folder, data):
    told = {"users": list(data), "num_samples": [], "user_data": data}
    (folder / "train").mkdir(parents=True)
    (folder / "train" / "all.json").write_text(json.dumps(told))
    return str(folder)


def test_fedprox_labels_are_whole_floats(tmp_path):
    user = {"x": [[0.5, 1.0], [2.0, 3.0]], "y": [1.0, 0.0]}
    data = sources.load(write_leaf(tmp_path / "synthetic", {"f_1": user, "f_0": user}))
    assert data.y.tolist() == [1, 0, 1, 0] and data.num_classes == 2
    assert federate(data, "natural", test_split="within").clients == ["f_1", "f_0"]


@pytest.mark.parametrize("more", [[], ["training"]])
def test_sent140_has_its_tweet_in_the_fifth_column(tmp_path, more):
    before = ["id", "date", "NO_QUERY", "user"]
    tweets = [[*before, text, *more] for text in ("so good", "bad")]
    users = {"a": {"x": tweets, "y": [1, 0]}, "b": {"x": tweets[:1], "y": [1]}}
    data = sources.load(write_leaf(tmp_path, users), tokenizer="words", max_tokens=4)
    assert (data.x > 0).sum(1).tolist() == [3, 2, 3] and data.y.tolist() == [1, 0, 1]
    assert sources.load(tmp_path).x.shape == (3, 768)


@pytest.mark.parametrize(
    "name, content, told",
    [
        ("a.json", '{"ward 3": [3, 0], "ward 1": [1]}', None),
        ("a.csv", "client,sample\nward 3,3\nward 1,1\nward 3,0\n", None),
        ("a.json", '{"a": [0.5]}', "Expected `int`"),
        ("a.json", '{"a": [4]}', "client a has rows from 4 to 4"),
        ("a.csv", "0,1\n1,2\n", "expected ['client', 'sample']"),
        ("a.pkl", "", "expected one of .json, .csv"),
    ],
)
def test_a_file_lists_the_rows_of_clients(tmp_path, name, content, told):
    (tmp_path / name).write_text(content)
    x, y = np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1])
    data, path = sources.make_dataset(x, y, x, y), str(tmp_path / name)
    if told:
        refused(lambda: federate(data, "listed", path=path), told)
        return
    fed = federate(data, "listed", path=path)
    assert fed.clients == ["ward 3", "ward 1"] and fed.train.size.tolist() == [2, 1]
    assert fed.train.index.tolist() == [[3, 0], [1, 0]]


def test_tables_need_no_prefix_and_other_files_are_refused(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="needs the extra [hf]")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    for name in ("mine.csv", "folder/train.csv"):
        Path(name).write_text("a,b,ill\n0.5,1.5,1\n2.5,3.5,0\n0.5,2.5,1\n")
    datasets.Dataset.from_csv("mine.csv").to_parquet("mine.parquet")
    for name in ("mine.csv", "mine.parquet", "folder"):
        rows = [[0.5, 1.5], [2.5, 3.5], [0.5, 2.5]]
        assert sources.load(name).x.tolist() == rows, name
    refused(lambda: sources.load("absent.csv"), "no such file")
    for name in ("fed_emnist_train.h5", "parts.pkl"):
        refused(lambda name=name: sources.load(name), "np.savez('mine.npz', x=x, y=y")


def test_whole_numbers_below_zero_can_be_predicted(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="needs the extra [hf]")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    path = tmp_path / "gains.csv"
    path.write_text("a,gain\n0.5,-3\n1.5,2\n2.5,-1\n")
    data = sources.load(str(path), hf={"label": "gain"}, task="regression")
    assert data.y.tolist() == [-3.0, 2.0, -1.0]
