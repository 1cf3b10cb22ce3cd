"""Regression and several labels a sample, in Python and from an .npz file."""

import json

import jax
import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.export import export_run, load_sparse
from sparsefl_jax.models.loss import regression_error, sigmoid_cross_entropy
from sparsefl_jax.runs import experiment
from tests.refusals import refused
from tests.tiny import tiny_config


def samples(task, n=240):
    """Features [n, 4] and targets that are linear in them, far from 0 and 1."""
    x = np.random.default_rng(0).normal(size=(n, 4)).astype(np.float32)
    scores = x @ np.array([[1.0, 0], [-1, 1], [0, 1], [0.5, 0]])
    return x, (scores > 0).astype(int) if task == "multilabel" else 500 + 40 * scores[
        :, 0
    ]


def configured(folder, task):
    x, y = samples(task)
    np.savez(folder / "own.npz", x=x[:200], y=y[:200], x_test=x[200:], y_test=y[200:])
    config = tiny_config(folder)
    config.dataset, config.partition = str(folder / "own.npz"), {"name": "iid"}
    config.task, config.num_rounds = task, 10
    config.first_stage, config.algorithm = {}, {"name": "fedavg"}
    return config, x[200:], y[200:]


@pytest.mark.parametrize("task", ["regression", "multilabel"])
def test_a_run_from_a_file_reports_the_measure_of_what_it_exports(tmp_path, task):
    config, x, y = configured(tmp_path, task)
    summary = experiment.run(config, tmp_path / "run", progress=False)
    path, _ = export_run(tmp_path / "run")
    (params, _, stats), model, _ = load_sparse(path)
    outputs = np.asarray(model.apply(params, stats, x, train=False)[0])
    if task == "regression":
        expected = np.sqrt(np.mean((outputs[:, 0] - y) ** 2))
        assert expected < 0.5 * y.std()  # the mean would have the deviation
        assert (summary["measure"], summary["better"]) == ("rmse", "lower")
    else:
        both = ((outputs > 0) & (y == 1)).sum(0)
        expected = np.mean(2 * both / ((outputs > 0).sum(0) + y.sum(0)))
        assert expected > 0.8
        assert (summary["measure"], summary["better"]) == ("f1", "higher")
    assert summary["value"]["global"]["final"] == pytest.approx(expected, rel=1e-4)
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "accuracy" not in text
    loss = [json.loads(line).get("loss") for line in text.splitlines()[1:]][-2]
    assert 0 < loss < 1  # of standardised targets; nats a label


def test_a_run_of_python_exports_what_reads_raw_columns(tmp_path):
    x, y = samples("regression")
    x = x * [1, 200, 0.1, 5] + [0, 1000, 3, -5]
    split = {"x_test": x[200:], "y_test": y[200:], "num_clients": 4}
    data = sfl.from_arrays(x[:200], y[:200], task="regression", **split)
    model = sfl.models.for_task(sfl.models.build("mlp", 1, (4,)), data)
    stages = [sfl.Stage(sfl.fedavg(model, sfl.training.make_optimizer()), 2, 4)]
    sfl.experiment(stages, model, data, workdir=tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    (params, _, stats), model, _ = load_sparse(export_run(tmp_path / "run")[0])
    outputs, _ = model.apply(params, stats, x[200:].astype(np.float32), train=False)
    rmse = np.sqrt(np.mean((np.asarray(outputs)[:, 0] - y[200:]) ** 2))
    assert summary["value"]["global"]["final"] == pytest.approx(rmse, rel=1e-3)


def test_losses_by_hand():
    logits = np.array([[2.0, -1.0], [0.0, 9.0]], np.float32)
    truth, weight = np.array([[True, True], [False, False]]), np.array([1.0, 0.0])
    loss, sums = sigmoid_cross_entropy(logits, truth, weight)
    by_hand = np.mean([np.log1p(np.exp(-2.0)), np.log1p(np.exp(1.0))])
    assert float(loss) == pytest.approx(by_hand, rel=1e-5) and sums["count"] == 1
    aims = np.array([[0.0, 1.0], [5.0, 5.0]])
    for error, expected in (("squared", (1 + 16) / 2), ("absolute", (1 + 4) / 2)):
        found, _ = regression_error(error, scale=(2.0, 0.5))(logits, aims, weight)
        assert float(found) == pytest.approx(expected)


def test_unseen_clients_do_not_standardise():
    x, y = samples("regression", 40)
    y[20:] += 1e6
    parts = [range(20), range(20, 40)]
    given = {"partition": parts, "task": "regression", "test_split": "pooled"}
    data = sfl.from_arrays(x, y, x_test=x, y_test=y, **given)
    seen = data.train.size * np.array([1, 0], np.int32)
    data = data._replace(train=data.train._replace(size=seen))
    model = sfl.models.for_task(sfl.models.build("mlp", 1, (4,)), data)
    zeros = jax.tree.map(np.zeros_like, model.init(jax.random.key(0)))
    output, _ = model.apply(*zeros, x[:1], train=False)
    assert output.item() == pytest.approx(y[:20].mean(), rel=1e-5)


def test_what_a_task_cannot_use_is_refused(tmp_path):
    x, y = samples("regression", 40)
    labels, make = samples("multilabel", 40)[1], sfl.training.make_optimizer()
    gaps = np.where(np.arange(40) == 3, np.nan, y)
    network, given = sfl.models.build("mlp", 1, (4,)), {"num_clients": 2}
    data = sfl.from_arrays(x, y, task="regression", **given)
    model = sfl.models.for_task(network, data)
    several = sfl.from_arrays(x, labels, task="multilabel", **given)
    wide = sfl.models.build("mlp", 2, (4,))

    def run(model, data=data, **settings):
        stage = sfl.Stage(sfl.fedavg(model, make), 1, 2)
        sfl.run(jax.random.key(0), [stage], model, data, **settings)

    def read(y, task, **more):
        sfl.from_arrays(x, y, task=task, **given, **more)

    for call, said in (
        (lambda: read(gaps, "regression"), "expected finite float32 [n] or [n, T] for"),
        (lambda: read(1e300 * y, "regression"), "expected finite float32 [n] or"),
        (lambda: read(y, "multilabel"), "expected [n, K] of 0 and 1 for task='multi"),
        (lambda: read(y, "regresion"), "task='regresion' (did you mean 'regression'?)"),
        (lambda: read(y, "classification"), "or task='regression' or 'multilabel'"),
        (lambda: read(y, "regression", num_classes=3), "num_classes=3 has no effect"),
        (lambda: read(y, "regression", partition="lda"), "partition 'lda' divides"),
        (lambda: run(network), "expected models.for_task(model, data)"),
        (lambda: run(wide, several), "expected models.for_task(model, data)"),
        (lambda: run(model, measure="accuracy"), "'accuracy' counts classes"),
        (lambda: run(model, measure="f1"), "expected a class for each row of logits"),
        (lambda: sfl.prunefl_initial(model, make), "begins at an accuracy"),
        (lambda: sfl.fjord(model, make, distill=True), "distill=True needs a softmax"),
        (lambda: sfl.fedrolex(model, make), "mask_classes=True needs a softmax"),
    ):
        refused(call, said)
    config, *_ = configured(tmp_path, "multilabel")
    config.error = "absolute"
    refused(lambda: experiment.build(config), "error='absolute' has no effect here")
