"""Labels by what differs, and the refusal of runs on unlike data."""

import json

import pytest

from sparsefl_jax.report import (
    compare,
    read_groups,
)
from sparsefl_jax.report.comparison_figures import looks
from sparsefl_jax.report.differences import make_labels
from sparsefl_jax.report.figure import COLORS
from sparsefl_jax.report.groups import refuse_unlike, unlikeness
from tests.report.equal_cost_test import write

POINTS = [(1, 0.5), (2, 0.6)]


def groups_of(folder, *configs):
    paths = []
    for i, config in enumerate(configs):
        config = dict(config)
        algorithm = config.pop("algorithm")
        seed = config.pop("seed", 0)
        path = write(folder / f"run{i}", POINTS, seed, algorithm["name"])
        fields = {"seed": seed, "algorithm": algorithm, **config}
        (path / "config.json").write_text(json.dumps(fields))
        paths.append(path)
    return read_groups(paths)


def a(name, **arguments):
    return {"name": name, **arguments}


FIRST = {"name": "sensitivity", "density": 0.05}
THIN = {"algorithm": a("jmwst", density=0.1), "first_stage": FIRST | {"density": 0.1}}
RATES = [{"learning_rate": rate, "clip": 0.0} for rate in (0.1, 0.01, 0.3)]
LABELS = {  # by labels, configurations
    # The density, wherever it stands.
    ("fedavg", "spdst, density 0.05", "jmwst, density 0.05", "jmwst, density 0.1"): [
        {"algorithm": a("fedavg")},
        {"algorithm": a("spdst"), "first_stage": FIRST},
        {"algorithm": a("jmwst", density=0.05), "first_stage": FIRST},
        THIN,
    ],
    # What tells runs of a method apart, and no more.
    ("fedavg, learning rate 0.1", "fedavg, learning rate 0.01", "fedprox"): [
        {"algorithm": a("fedavg"), "optimizer": RATES[0], "augment": []},
        {"algorithm": a("fedavg"), "optimizer": RATES[1], "augment": []},
        {"algorithm": a("fedprox"), "optimizer": RATES[2], "augment": ["flip"]},
    ],
}


@pytest.mark.parametrize("labels, configs", LABELS.items(), ids=lambda v: str(v)[:40])
def test_labels_hold_what_tells_runs_apart_and_no_more(tmp_path, labels, configs):
    assert tuple(make_labels(groups_of(tmp_path, *configs))) == labels


def test_given_labels_stay_and_become_unique(tmp_path):
    groups = groups_of(
        tmp_path, {"algorithm": a("fedavg")}, {"algorithm": a("fedprox")}
    )
    for given, shown in (("xy", ["x", "y"]), ("xx", ["x, run0", "x, run1"])):
        named = [g._replace(label=x) for g, x in zip(groups, given, strict=True)]
        assert [e.label for e in compare(named).groups] == shown


def change_summary(path, **fields):
    (path / "summary.json").write_text(json.dumps({"method": "m", **fields}))


def two(tmp_path, seed=0):
    one = write(tmp_path / "one", POINTS)
    return one, write(tmp_path / "two", POINTS, seed, "spdst")


def check(one, other, expected):
    groups = read_groups([one, other])
    assert unlikeness(groups) == ["", expected]
    if not expected:
        return refuse_unlike(groups)
    with pytest.raises(ValueError, match=f"another {expected} than") as raised:
        refuse_unlike(groups)
    assert "\n" not in str(raised.value) and str(other) in str(raised.value)
    return None


def test_another_table_of_devices_under_the_same_name_is_unlike(tmp_path):
    """Another name or deadline is what a study compares, and is no reason."""
    same = {"seed": 0, "system": "devices.csv", "deadline": {"seconds": 3.0}}
    for other, sums, expected in (
        (same, (1, 1), ""),
        (same, (1, 2), "table of devices"),
        (same | {"deadline": {"seconds": 4.0}}, (1, 2), ""),
        (same | {"system": "others.csv"}, (1, 2), ""),
    ):
        runs = two(tmp_path)
        for run, config, sum_ in zip(runs, (same, other), sums, strict=True):
            (run / "config.json").write_text(json.dumps(config))
            change_summary(run, data={"system": sum_})
        check(*runs, expected)


SUMS = dict(x=1, y=2, x_test=3, y_test=4, num_classes=10, train=5, val=6, test=7)


@pytest.mark.parametrize(
    "changes, seed, expected",
    [
        ({}, 0, ""),
        ({"x": 9}, 0, "data"),
        ({"test": 9}, 0, "partition"),
        ({"train": 9}, 1, ""),  # another seed may have another partition
        ({"x": 9, "train": 9}, 0, "data, partition"),
    ],
)
def test_checksums_tell_data_and_partition_apart(tmp_path, changes, seed, expected):
    one, other = two(tmp_path, seed)
    change_summary(one, data=SUMS)
    change_summary(other, data=SUMS | changes)
    check(one, other, expected)


def test_without_checksums_the_configuration_decides(tmp_path):
    one = write(tmp_path / "one", POINTS, dataset="a/mnist.npz", num_clients=9)
    same = write(tmp_path / "two", POINTS, 1, dataset="b/mnist.npz", num_clients=9)
    check(one, same, "")
    write(same, POINTS, 1, dataset="cifar", num_clients=8)
    check(one, same, "data, partition")


PYTHON = {"source": "python", "partition": {"name": "python"}, "dataset": "mine"}
DRAWN = {"dataset": "data/mine.npz", "partition": {"name": "dirichlet", "alpha": 0.5}}


def test_a_run_made_in_python_is_like_the_same_run_of_a_configuration(tmp_path):
    groups = groups_of(
        tmp_path,
        {"algorithm": a("my_module:mine", rate=2), **DRAWN, "num_clients": 9},
        {"algorithm": a("mine", rate=2, loss="f"), **PYTHON, "num_clients": 9},
    )
    assert unlikeness(groups) == ["", ""]
    named = ["mine, dataset data/mine.npz", "mine, dataset mine"]
    assert make_labels(groups) == named
    assert [look["color"] for look in looks(groups)] == [COLORS[0], COLORS[0]]
