"""Rows of papers' tables have the settings that the papers state, and their columns."""

import json

import pytest

from benchmarks import table as tables
from benchmarks.pages import declared
from sparsefl_jax.config.defaults import freeze
from sparsefl_jax.core.flatten import flatten
from tests.report import equal_cost_test

ONE_SOFTMAX = {"model.softmax_output": False, "partition.alpha": 1000.0}
LARGEST = ("algorithm.max_density", "first_stage.max_density")


@pytest.mark.parametrize(
    ("name", "row", "fields"),
    [
        (
            "fedsparsify_cifar10_100",
            "iid_prunefl.7",
            {"partition.name": "iid", "num_clients": 100, "cohort_size": 10}
            | dict.fromkeys(LARGEST, 0.7),
        ),
        ("flash_pathological", "spdst,release", {"model.softmax_output": True}),
        (
            "flash_pathological",
            "feddst,release_one_softmax",
            {"model.softmax_output": False, "algorithm.variant": "release"},
        ),
        ("flash_mnist", "spdst_d05", {"first_stage.density": 0.05, "num_rounds": 400}),
        ("flash_mnist", "pdst_a1000_d05_paper", ONE_SOFTMAX | {"lr_horizon": None}),
        ("flash_mnist", "pdst_a1000_one_softmax", ONE_SOFTMAX | {"lr_horizon": 1000}),
        ("spafl_cifar10", "local", {"algorithm.initial": "sent"}),
    ],
)
def test_rows_have_the_settings_that_the_paper_states(name, row, fields):
    config = flatten(vars(freeze(tables.row_config(declared(name), row, 0))))
    assert {key: config[key] for key in fields} == fields


def records(folder, lines):
    always = next(equal_cost_test.lines([(0.0, None)]))
    written = [{"schema": 1}, *(always | line for line in lines)]
    text = "".join(json.dumps(line) + "\n" for line in written)
    (folder / "metrics.jsonl").write_text(text)


def test_the_largest_fall_is_between_neighbouring_rounds(tmp_path):
    accuracies = [0.5, 0.75, 0.625, 0.875, 0.5, 0.25]
    lines = [
        {"phase": "eval", "round": round, "accuracy": accuracy, "models": {}}
        for round, accuracy in enumerate(accuracies, 1)
    ]
    records(tmp_path, lines)
    table = declared("fedsparsify_frequency")
    assert table.extra(tmp_path) == {"largest fall": 0.375}


def test_an_optimizer_is_tried_by_its_last_three_evaluations(tmp_path):
    lines = [
        {"phase": "eval", "round": round, "val_accuracy": accuracy, "models": {}}
        for round, accuracy in enumerate([0.9, 0.25, 0.5, 0.375], 1)
    ]
    records(tmp_path, lines)
    assert declared("spafl_optimizers").extra(tmp_path) == {"validation": 0.375}


def test_the_best_within_1_gib_is_of_the_rounds_before_8_59_gbit(tmp_path):
    lines = [
        {"phase": "eval", "accuracy": accuracy, "gbit_cumulative": gbit, "models": {}}
        for accuracy, gbit in [(0.5, 4.0), (0.75, 8.0), (0.625, 8.5), (0.875, 8.7)]
    ]
    records(tmp_path, lines)
    found = declared("flash_pathological").extra(tmp_path)
    assert found == {"best within 1 GiB": 0.75}


def test_what_clients_of_sa_send_and_save(tmp_path):
    """Tables 2, 4, p = .5: .067, .113 of the kernels, .311 and .291 of the FLOPs.

    The hidden layer has 768 * 32 weights, the last 32 * 3. By the paper's count, they
    save 2 * 24576 * .933 of 3 * (2 * 24576 + 32) FLOPs and 192 * .887 of 585.
    """
    client = {"client_density": 0.068}
    client |= {"client_density/fc1/kernel": 0.067, "client_density/fc2/kernel": 0.113}
    dense = dict.fromkeys(client, 1.0)  # of round 1, which does not count
    lines = [
        {"phase": "train", "round": round, "client": values}
        for round, values in enumerate((dense, client, client), 1)
    ]
    records(tmp_path, lines)
    config = {"algorithm": {"name": "complement", "density": 0.5}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = declared("complement_twitter").extra(tmp_path)
    saved = (2 * 24576 * 0.933 + 192 * 0.887) / (147552 + 585)
    assert found["FLOPs saved"] == pytest.approx(saved, rel=1e-6)
    assert round(saved, 3) == 0.311 and found["client density"] == pytest.approx(0.068)
    records(tmp_path, [{"phase": "train", "round": 2}])
    assert declared("complement_twitter").extra(tmp_path) == {}
