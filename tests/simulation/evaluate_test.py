"""Evaluation against NumPy, on test sets that do not divide into batches."""

import jax
import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax import models
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.simulation import inference, judge


@pytest.mark.parametrize("count", [1, 107])
def test_masked_entries_count_as_zero(count):
    model = models.build("mlp", 3, (2, 2, 1), widths=(5,))
    params, stats = model.init(jax.random.key(0))
    mask = jax.tree.map(lambda p: np.arange(p.size).reshape(p.shape) % 2 == 0, params)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 2, 2, 1)).astype(np.float32)
    y = rng.integers(0, 3, count)
    run = inference.make_evaluator(model, x, y)
    correct, loss = run(SparseModel(params, mask, stats))

    kept = jax.tree.map(lambda p, m: np.where(m, p, 0), params, mask)
    hidden = np.maximum(
        x.reshape(count, -1) @ kept["fc1"]["kernel"] + kept["fc1"]["bias"], 0
    )
    logits = hidden @ kept["fc2"]["kernel"] + kept["fc2"]["bias"]
    expected = np.log(np.exp(logits).sum(1)) - logits[np.arange(count), y]
    np.testing.assert_allclose(loss, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(correct, logits.argmax(1) == y)


@pytest.mark.parametrize(("metric", "accuracy"), [("pooled", 4 / 6), ("clients", 0.75)])
def test_the_metric_weighs_samples_or_clients(metric, accuracy):
    """Of four samples of one client half are right, both of one; a third has none."""
    users, x = np.repeat([0, 1], [4, 2]), np.ones((6, 2, 2, 1), np.float32)
    y = np.array([0, 0, 1, 1, 0, 0], np.int32)
    given = {"users": [0, 0, 0, 0, 1, 2], "users_test": users, "test_split": "natural"}
    data = sfl.from_arrays(x, y, x_test=x, y_test=y, partition="natural", **given)
    model = models.build("mlp", 2, (2, 2, 1), widths=(3,))
    params, stats = jax.tree.map(np.zeros_like, model.init(jax.random.key(0)))
    params["fc2"]["bias"][0] = 1.0  # every sample is of class 0
    stage = sfl.Stage(sfl.fedavg(model, sfl.training.make_optimizer()), 1, 2)
    evaluate = judge.make_evaluation(model, data, metric=metric)(stage)
    full = jax.tree.map(lambda p: np.ones(p.shape, bool), params)
    deployed = {"global": SparseModel(params, full, stats)}
    record = evaluate(jax.random.key(0), None, deployed, None)
    assert record["accuracy"] == pytest.approx(accuracy)
    assert record["models"]["global"]["accuracy"] == pytest.approx(accuracy)
    shares = {"mean": 0.75, "p10": 0.55, "median": 0.75}
    assert record["client_accuracy"] == pytest.approx(shares)
    assert record["metric"] == metric
