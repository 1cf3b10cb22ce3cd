"""Runs of another measure than accuracy, of which the lowest value is the best."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax import report
from sparsefl_jax.config.fields import Limits
from sparsefl_jax.models.measure import Measure
from sparsefl_jax.report import costs
from sparsefl_jax.runs import experiment
from tests.refusals import refused
from tests.report.equal_cost_test import lines
from tests.report.report_test import write_run
from tests.tiny import federation, tiny_config

MEASURE = """
import jax.numpy as jnp
from sparsefl_jax.models.measure import Measure

def misses(logits, labels, weight):
    wrong = jnp.argmax(logits, -1) != labels
    return {"total": jnp.sum(weight * wrong)}

error = Measure("error", misses, better="lower")
"""


def write(folder, name, values):
    """Writes a run of a measure whose lower values are better, with validation."""
    records = []
    for record in lines(values):
        if record["phase"] == "eval":
            value = record.pop("accuracy")
            record |= {"measure": "rmse", "better": "lower", "value": value}
            record |= {"val_value": value + 1, "models": {"global": {"value": value}}}
        records.append(record)
    write_run(folder, records, summary={"method": name})
    config = {"seed": 0, "algorithm": {"name": name}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_the_lowest_value_is_the_best(tmp_path):
    bad = write(tmp_path / "bad", "fedavg", [(1, 5.0), (2, 4.0)])
    good = write(tmp_path / "good", "spafl", [(1, 2.0), (2, 2.5)])
    assert costs.best_eval(report.read_run(good))["accuracy"] == 2.0
    groups = report.sort_groups(report.read_groups([bad, good]))
    assert [group.name for group in groups] == ["good", "bad"]
    comparison = report.compare(groups)
    assert comparison.chosen == 0
    table = report.comparison_table(comparison)
    assert (
        "rmse after the last" in table and "spafl   1       2  3.5   2.5     2" in table
    )
    report.write_comparison(comparison, tmp_path / "out")
    head = (tmp_path / "out" / "comparison.csv").read_text().partition("\n")[0]
    assert {"rmse", "val_rmse", "rmse_at_gbit_1"} <= set(head.split(","))
    assert "accuracy" not in head and "area" not in head  # which would start at 0


@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")
def test_a_measure_that_validation_does_not_define_ends_the_run():
    data, model, parts = federation((4, 4), 8, 3, (2, 2, 1), (5,))
    held = data.train._replace(index=data.train.index[:, :1], size=np.int32([1, 1]))
    many = lambda sums: np.where(sums["count"] > 5, 1.0, np.nan)  # noqa: E731
    measure = Measure("many", lambda *_: {"total": jnp.float32(0)}, many)
    given = {"measure": measure, "metric": "pooled", "progress": False}
    stages = [sfl.Stage(sfl.fedavg(*parts), 1, 2)]
    run = lambda: sfl.experiment(stages, model, data._replace(val=held), **given)  # noqa: E731
    refused(run, "many is not defined on the samples evaluated")


def test_runs_of_another_measure_are_unlike(tmp_path):
    write_run(tmp_path / "a", list(lines([(1, 0.5)])), summary={"method": "fedavg"})
    write(tmp_path / "b", "fedavg", [(1, 2.0)])
    groups = report.read_groups([tmp_path / "a", tmp_path / "b"])
    refused(lambda: report.compare(groups, unlike=False), "another metric")


def test_a_run_reports_a_measure_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "own_measure.py").write_text(MEASURE)
    monkeypatch.syspath_prepend(tmp_path)
    config = tiny_config(tmp_path)
    config.measure, config.until.value = "own_measure:error", 0.99
    summary = experiment.run(config, tmp_path / "run", progress=False)
    assert (summary["ended_by"], summary["measure"]) == ("value", "error")
    run = report.read_run(tmp_path / "run")
    (raw,) = [
        r
        for r in report.read_records(run.path / "metrics.jsonl")
        if "value" in r and r["stage"] == 1
    ]
    shares = [share for share in raw["accuracy_by_class"]]  # classes are alike in size
    assert raw["value"] == pytest.approx(1 - sum(shares) / 4)
    assert summary["value"]["global"]["best"] == raw["value"]
    page = (run.path / "report.html").read_text()
    assert "error, last round" in page and "Accuracy by class" in page
    assert "error" in report.summary_table(summary)


def test_a_limit_of_another_measure_is_refused():
    data, model, parts = federation((4, 4), 8, 3, (2, 2, 1), (5,))
    stages = [sfl.Stage(sfl.fedavg(*parts), 1, 2)]
    for measure, until, said in (
        ("f1", Limits(accuracy=0.5), "until.accuracy=0.5 has no effect here: f1 has"),
        ("accuracy", Limits(value=0.5), "until.value=0.5 has no effect here: accuracy"),
    ):
        given = {"measure": measure, "until": until, "progress": False}
        refused(lambda g=given: sfl.experiment(stages, model, data, **g), said)
