"""What the papers print in tables that are declared here, copied from them by hand."""

import functools
import json

import pytest

from benchmarks import table as tables
from benchmarks.pages import declared

PRINTED = {
    "spafl_fashion_mnist": {  # SpaFL, Tables 2, 3, 1
        "fjord": "89.08 ± 0.17",
        "without13": "88.20 ± 1.10",
        "untrained": "10.22 ± 0.25",
    },
    "spafl_cifar10": {
        "spafl": "69.75 ± 2.81",
        "local": "57.06 ± 1.30",
        "thresholds_only": "60.94 ± 3.4",
    },
    "spafl_cifar100": {
        "spafl_release": "40.80 ± 0.54",
        "heterofl": "37.82 ± 0.15",
        "without13": "38.96 ± 0.80",
        "thresholds_only": "24.80 ± 1.1",
        "untrained": "1.43 ± 0.53",
    },
    "fedsparsify_cifar10": {  # FedSparsify, Tables 1 and 2
        "fedavg": "75",
        "global.15": "75.5",
        "global.01": "70",
        "iid_global.01": "",
    },
    "fedsparsify_fashion_mnist": {"fedavg": "74.89", "global.05": "73.5", "snip.1": ""},
    "complement_femnist": {  # Complement Sparsification: text, Tables 3 and 5
        "fedavg": "76.3",
        "cs0.7": "-, .172, .396",
        "prunefl_adam": "55.5",
        "pqsu": "57.9",
    },
    "complement_twitter": {  # text, Tables 2 and 4
        "all_cs0.5": "73.3",
        "cs0.5": "74.3, .068, .311",
        "cs0.8": "-, .188, .470",
        "prunefl": "71.5",
    },
}


@pytest.mark.parametrize("name", PRINTED)
def test_rows_have_the_figures_that_the_paper_prints(name):
    rows = declared(name).rows
    assert {row: rows[row].paper for row in PRINTED[name]} == PRINTED[name]


@pytest.mark.parametrize(
    ("name", "row", "fields"),
    [
        ("spafl_cifar100", "untrained", {"num_rounds": 1, "num_clients": 100}),
        (
            "fedsparsify_cifar10_100",
            "iid_prunefl.7",
            {
                "partition.name": "iid",
                "num_clients": 100,
                "cohort_size": 10,
                "algorithm.max_density": 0.7,
                "first_stage.max_density": 0.7,
            },
        ),
        (
            "fedsparsify_fashion_mnist",
            "local.1_average",
            {"algorithm.merge": "average", "algorithm.density": 0.1, "partition.k": 2},
        ),
        (
            "fedsparsify_frequency",
            "every20",
            {"algorithm.frequency": 20, "algorithm.density": 0.05},
        ),
        ("complement_sst2", "all_cs0.5", {"cohort_size": 400, "num_clients": 400}),
        ("complement_twitter", "cs0.9", {"cohort_size": 10, "algorithm.density": 0.1}),
        ("complement_twitter", "all_fedavg", {"cohort_size": 436}),
        (
            "complement_twitter",
            "prunefl_adam",
            {
                "algorithm.name": "prunefl",
                "optimizer.name": "adam",
                "optimizer.learning_rate": 0.01,
                "epochs": 5,
                "batch_size": 64,
            },
        ),
        ("flash_pathological", "spdst,release", {"model.softmax_output": True}),
        *(
            (f"spafl_{data}", "local", {"algorithm.initial": "sent"})
            for data in ("fashion_mnist", "cifar10", "cifar100")
        ),
    ],
)
def test_rows_have_the_settings_that_the_paper_states(name, row, fields):
    config = tables.row_config(declared(name), row, 0)
    found = {key: functools.reduce(getattr, key.split("."), config) for key in fields}
    assert found == fields


def records(folder, lines):
    always = {"stage": 0, "gbit_cumulative": 0.0, "flops": 1.0, "flops_dense": 2.0}
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
