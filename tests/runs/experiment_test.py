"""From a configuration to the files of a run, and errors before compilation."""

import json

import jax
import numpy as np
import pytest

from sparsefl_jax.config import build
from sparsefl_jax.config.defaults import freeze
from sparsefl_jax.report import read_records, read_run
from sparsefl_jax.runs import experiment, records, simulate
from sparsefl_jax.testing.small_world import tiny_model
from tests.tiny import tiny_config


@pytest.fixture
def config(tmp_path):
    """Runs two stages in two seconds."""
    return tiny_config(tmp_path)


def test_a_run_writes_its_files(config, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "draw", lambda path: None)
    summary = experiment.run(config, tmp_path / "a", progress=False)
    lines = (tmp_path / "a" / "metrics.jsonl").read_bytes()
    assert lines.splitlines()[0] == b'{"schema": 1}'
    written = read_records(tmp_path / "a" / "metrics.jsonl")
    phases = [(r["stage"], r["phase"], r["round"]) for r in written]
    assert phases == [
        (0, "train", 1),
        (0, "eval", 1),
        (1, "train", 1),
        (1, "train", 2),
        (1, "eval", 2),
        (1, "train", 3),
        (1, "train", 4),
        (1, "eval", 4),
    ]
    sent = sum(r["bits_up"] + r["bits_down"] for r in written if r["phase"] == "train")
    assert written[-1]["gbit_cumulative"] == pytest.approx(sent / 1e9)
    totals = summary["stages"]
    assert sum(s["bits_up"] + s["bits_down"] for s in totals) == sent
    assert sum(s["bits_values"] + s["bits_positions"] for s in totals) == sent
    assert totals[1]["flops"] < totals[1]["flops_dense"] <= totals[1]["flops_executed"]
    assert summary == json.loads((tmp_path / "a" / "summary.json").read_text())
    assert len(read_run(tmp_path / "a").train) == 5
    assert json.loads((tmp_path / "a" / "config.json").read_text())["num_clients"] == 8
    counts = np.load(tmp_path / "a" / "partition.npy")
    assert counts.sum() == 160
    clients = summary["clients"]
    assert clients["number"] == 8
    assert clients["train"]["max"] == counts.sum(1).max()
    assert clients["largest_share"] == counts.sum(1).max() / 160


@pytest.mark.slow
def test_functions_alone_equal_the_configured_run(config, tmp_path):
    experiment.run(config, tmp_path / "a", progress=False)
    data = build.build_data(freeze(config))
    model = build.build_model(freeze(config), data)
    stages = build.build_stages(freeze(config), model)
    run = simulate.run(jax.random.key(0), stages, model, data, eval_every=2)
    assert run.metrics == read_records(tmp_path / "a" / "metrics.jsonl")


def test_budgets_must_be_the_densities_of_the_method(config):
    config.algorithm = {"name": "hetero_spdst", "densities": (0.25, 0.5)}
    config.cohort_size = 4
    for pairs, told in (
        (((0.25, 0.5), (1.0, 0.5)), "algorithm.densities"),
        (((0.25, 0.5), (0.5, 0.5)), None),
    ):
        config.budgets = pairs
        budgets = build.build_budgets(freeze(config))
        if told is None:
            build.build_stages(freeze(config), tiny_model(), budgets)
            config.first_stage.density, told = 0.4, "first_stage.density=0.4"
        with pytest.raises(ValueError, match=told):
            build.build_stages(freeze(config), tiny_model(), budgets)


def test_schedule_follows_the_round(config):
    config.final_learning_rate, config.num_rounds = 0.001, 400
    config.lr_horizon, config.lr_delay = 1000, 1
    optimizer = build.build_optimizer(config)
    ones = np.ones(1, np.float32)

    def rate(round):
        tx = optimizer(round)
        return -float(tx.update(ones, tx.init(ones))[0][0])

    expected = [0.1, 0.1, 0.1 * 0.01**0.398]  # exponent (399 - 1) / 1000
    assert [rate(0), rate(1), rate(399)] == pytest.approx(expected, rel=1e-5)
