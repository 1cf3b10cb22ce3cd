"""Measures against NumPy: of all samples, of clients, of clients' own models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.models.measure import MEASURES, Measure, check_measure
from sparsefl_jax.simulation import initial_state, judge, placement
from sparsefl_jax.sparsity import masks
from tests.refusals import refused
from tests.tiny import federation

CLASSES = 3


def by_pairs(scores, y):
    """The AUC: the share of pairs of a positive and a negative in the right order."""
    pairs = scores[y == 1][:, None] - scores[y == 0]
    return np.mean((pairs > 0) + (pairs == 0) / 2)


def by_hand(name, logits, y):
    said = logits.argmax(-1)
    if name == "auc":
        return by_pairs(logits[:, 1] - logits[:, 0], y)
    if name == "balanced_accuracy":
        return np.mean([(said == c)[y == c].mean() for c in np.unique(y)])
    scores = []
    for c in np.union1d(y, said):
        both = np.sum((said == c) & (y == c))
        scores.append(2 * both / (np.sum(said == c) + np.sum(y == c)))
    return np.mean(scores)


@pytest.mark.parametrize(
    ("name", "classes"), [("balanced_accuracy", 4), ("f1", 4), ("auc", 2)]
)
def test_sums_of_batches_give_the_measure_of_all(name, classes):
    """A batch is padded; the last class has no sample and, of all four, is said."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(60, classes)).astype(np.float32)
    y = rng.integers(0, max(2, classes - 1), 60).astype(np.int32)
    measure, weight = MEASURES[name], np.ones(40, np.float32)
    first = measure(jnp.array(logits[:40]), jnp.array(y[:40]), weight)
    padded = np.r_[np.arange(40, 60), np.zeros(20, int)]
    weight = weight * (np.arange(40) < 20)
    second = measure(jnp.array(logits[padded]), jnp.array(y[padded]), weight)
    sums = {k: np.asarray(first[k] + second[k], float) for k in first}
    error = 0.01 if name == "auc" else 1e-6  # of pairs within one of the bins
    assert measure.finish(sums) == pytest.approx(by_hand(name, logits, y), abs=error)


def test_the_auc_of_one_class_is_not_defined_and_far_scores_keep_their_order():
    auc = MEASURES["auc"]
    logits = jnp.array([[0, -9.0], [0, -8.0], [0, -50.0], [0, -9.0]])
    for y, expected in (([0, 1, 0, 0], 1.0), ([1, 0, 0, 0], 0.5), ([0] * 4, np.nan)):
        sums = auc(logits, jnp.array(y, jnp.int32), jnp.ones(4))
        found = auc.finish({k: np.asarray(v, float) for k, v in sums.items()})
        np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("factory", [sfl.fedavg, sfl.spafl, sfl.heterofl])
def test_a_client_has_the_measure_of_its_own_samples(factory):
    """SpaFL's models are the clients'; HeteroFL's depend on a budget; one has none."""
    data, model, parts = federation((9, 8, 7), 30, CLASSES, (2, 2, 1), (5,))
    empty = data.test.size * np.array([1, 1, 0])
    data = data._replace(test=data.test._replace(size=empty.astype(np.int32)))
    stage = sfl.Stage(factory(*parts), 1, 2)
    budgets = np.array([1.0, 0.5, 1.0], np.float32) if factory is sfl.heterofl else None
    sparse = initial_state.initial_model(jax.random.key(0), model)
    plan = placement.make_plan(stage, jax.tree.map(lambda m: m > 0, model.macs))
    info = placement.make_population(plan, data, budgets).info
    state = jax.device_get(initial_state.start(jax.random.key(0), plan, sparse, info))
    given = {"measure": "f1", "metric": "clients", "budgets": budgets}
    evaluate = judge.make_evaluation(model, data, **given)(stage)
    record = evaluate(jax.random.key(0), state, {"global": sparse})
    values = []
    for client in (0, 1):
        one, facts = sparse, jax.tree.map(lambda v, i=client: v[i], info)
        if stage.algorithm.personalize is not None:
            row = jax.tree.map(lambda v, i=client: v[i], state.clients)
            own = stage.algorithm.personalize(
                jax.random.key(0), state.server, row, jax.tree.map(jnp.asarray, facts)
            )
            one = next(iter(own.values()))
        rows = data.test.index[client, : data.test.size[client]]
        params = masks.apply(one.params, one.mask)
        logits, _ = model.apply(params, one.stats, data.x_test[rows], train=False)
        values.append(by_hand("f1", np.asarray(logits), data.y_test[rows]))
    assert record["value"] == pytest.approx(np.mean(values), abs=1e-6)
    assert (record["measure"], record["better"]) == ("f1", "higher")
    assert not [name for name in record if name.endswith("accuracy")]


def test_what_a_measure_cannot_read_is_refused():
    data, model, _ = federation((4, 4), 8, CLASSES, (2, 2, 1), (5,))
    check_measure("f1", model, data)
    for measure, said in (
        ("acuracy", "measure='acuracy' (did you mean 'accuracy'?), expected one of"),
        ("auc", "measure='auc': labels int32 [2] for outputs [2, 3], expected two cl"),
        ("rmse", "measure='rmse': labels int32 [2] for outputs [2, 3], expected a nu"),
        (
            Measure("each", lambda logits, *_: {"total": logits}),
            "measure='each': of one cl",
        ),
        (Measure("sum", lambda *_: {"hits": jnp.ones(())}), "measure='sum': total"),
        (Measure("own", None, better="up"), "measure.better='up', expected one of"),
    ):
        refused(lambda m=measure: check_measure(m, model, data), said)
