"""Clients that never train: cohorts, what their samples change, accuracies, charges."""

import jax
import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.core import keys
from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.core.check import UserError
from sparsefl_jax.data import cohorts, federated
from sparsefl_jax.data.federated import from_arrays
from sparsefl_jax.simulation import clock, systems

KEY, USERS = jax.random.key(0), np.arange(400) // 40
BUDGETS = np.tile([0.5, 1.0], 5)


def make_world(change=0.0, uint8=False, **kwargs):
    """Returns the data of ten users, whose unseen ones follow another rule."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 6)).astype(np.float32)
    held_out = np.isin(USERS, np.flatnonzero(drawn()))
    y = np.where(held_out, x[:, 1] > 0, x[:, 0] > 0).astype(int)
    if uint8:
        x = rng.integers(0, 255, (400, 2, 3, 1)).astype(np.uint8)
    given = dict(x_test=x.copy(), y_test=y.copy(), users=USERS, users_test=USERS)
    x[held_out] = x[held_out] + (100 if uint8 else change) * (change != 0)
    split = {"partition": "natural", "test_split": "natural", "val_fraction": 0.1}
    return from_arrays(x, y, unseen_fraction=0.3, **given, **split, **kwargs)


def drawn():
    """Returns whether each of ten clients is unseen, by the seed's own stream."""
    order = np.random.default_rng([0, keys.UNSEEN]).permutation(10)
    return np.isin(np.arange(10), order[:3])


def network(data):
    return sfl.models.build("mlp", 2, data.x.shape[1:], widths=(8,))


def run(data, factory=sfl.fedavg, rounds=4, **settings):
    model = network(data)
    method = factory(model, sfl.training.make_optimizer(learning_rate=0.3))
    stages = [Stage(method, rounds, 4, batch_size=8)]
    return sfl.run(KEY, stages, model, data, eval_every=rounds, **settings)


def test_the_fraction_is_drawn_from_the_seed_and_keeps_its_test_samples():
    data = make_world()
    assert np.array_equal(data.train.size == 0, drawn())
    assert not data.val.size[drawn()].any() and (data.val.size[~drawn()] == 4).all()
    assert (data.test.size == 40).all()


@pytest.mark.parametrize("fraction", [-0.1, 0.04, 1.0, float("nan")])
def test_a_fraction_that_leaves_no_client_is_refused(fraction):
    x = np.ones((20, 2), np.float32)
    with pytest.raises(UserError, match="unseen_fraction"):
        from_arrays(x, np.arange(20) % 2, num_clients=5, unseen_fraction=fraction)


@pytest.mark.parametrize("sampler", ["uniform", "own", "stratified"])
@pytest.mark.parametrize("system", [None, "mobile"])
def test_no_cohort_has_an_unseen_client(sampler, system):
    sizes = make_world().train.size
    if system is not None:
        system = systems.make_system(system, 10, seed=0, deadline=100.0)
        system = system._replace(available=np.full((10, 1), 0.5))
    present = clock.presence(system, sizes)
    own = {
        "uniform": None,
        "own": lambda key, round: jax.random.permutation(key, 10)[:4],
        "stratified": cohorts.stratified_sampler(BUDGETS, 4, present),
    }[sampler]
    stage = Stage(None, 300, 4, sampler=own)
    ids = cohorts.make_draw(KEY, stage, 10, present)(np.arange(300, dtype=np.int32))
    assert not np.isin(ids, np.flatnonzero(drawn())).any()
    if sampler != "own":
        assert set(ids[ids < 10].tolist()) == set(np.flatnonzero(~drawn()).tolist())
    if (sampler, system) == ("uniform", None):
        assert (ids < 10).all()


@pytest.mark.parametrize("uint8", [False, True])
def test_training_samples_of_unseen_clients_change_nothing(uint8):
    one, other = (run(make_world(change, uint8)) for change in (0.0, 5.0))
    assert one.metrics == other.metrics
    jax.tree.map(np.testing.assert_array_equal, one.models, other.models)


@pytest.mark.parametrize("metric", ["pooled", "clients"])
def test_accuracies_are_those_of_the_logits(metric):
    data = make_world()
    result = run(data, metric=metric, rounds=20)
    model, sparse = network(data), result.models["global"]
    logits, _ = model.apply(sparse.params, sparse.stats, data.x_test, train=False)
    correct, held_out = np.argmax(logits, 1) == data.y_test, drawn()[USERS]
    last = result.metrics[-1]
    assert last["seen_accuracy"] == pytest.approx(correct[~held_out].mean())
    assert last["unseen_accuracy"] == pytest.approx(correct[held_out].mean())
    assert last["accuracy"] == pytest.approx(correct.mean())
    assert last["seen_accuracy"] > last["unseen_accuracy"] + 0.2


def test_measures_are_those_of_all_samples_of_clients_that_train_or_do_not():
    x = np.random.default_rng(0).normal(size=(400, 6)).astype(np.float32)
    y = (10 * x[:, 0] + USERS * x[:, 1]).astype(np.float32)
    users = {"users": USERS, "users_test": USERS, "unseen_fraction": 0.3}
    split = {"partition": "natural", "test_split": "natural", "task": "regression"}
    data = from_arrays(x, y, x_test=x, y_test=y, **users, **split)
    model = sfl.models.for_task(sfl.models.build("mlp", 1, (6,)), data)
    stages = [Stage(sfl.fedavg(model, sfl.training.make_optimizer()), 1, 4)]
    result = sfl.run(KEY, stages, model, data)
    sparse, last = result.models["global"], result.metrics[-1]
    outputs, _ = model.apply(sparse.params, sparse.stats, data.x_test, train=False)
    squares, held_out = (np.asarray(outputs)[:, 0] - y) ** 2, drawn()[USERS]
    for part, rows in {"seen_value": ~held_out, "unseen_value": held_out}.items():
        assert last[part] == pytest.approx(np.sqrt(squares[rows].mean()), rel=1e-5)


@pytest.mark.parametrize("metric", ["pooled", "clients"])
def test_a_measure_that_no_unseen_client_has_ends_no_run(metric):
    data = make_world()
    held_out = np.isin(USERS, np.flatnonzero(drawn()))
    data = data._replace(y_test=np.where(held_out, 1, data.y_test))
    last = run(data, metric=metric, measure="auc").metrics[-1]
    assert np.isnan(last["unseen_value"]) and 0.5 < last["seen_value"] <= 1


def test_an_unseen_client_gets_the_model_of_its_rule_and_pays_for_it():
    """FedAvg sends 8 hidden units and 2 outputs; half the width has 4 hidden units."""
    data = make_world()
    dense, half = 32 * (6 * 8 + 8 + 8 * 2 + 2), 32 * (6 * 4 + 4 + 4 * 2 + 2)
    common, own = run(data).metrics[-1], run(data, sfl.ditto).metrics[-1]
    assert own["unseen_accuracy"] == pytest.approx(common["unseen_accuracy"])
    assert own["unseen_bits_down"] == common["unseen_bits_down"] == 3 * dense
    sliced = lambda *given: sfl.heterofl(*given, scaler=False)  # noqa: E731
    by_size = run(data, sliced, budgets=BUDGETS).metrics[-1]
    weak = int((BUDGETS[drawn()] == 0.5).sum())
    assert by_size["unseen_bits_down"] == weak * half + (3 - weak) * dense


def test_a_run_without_unseen_clients_has_no_new_keys():
    x, y = np.eye(20, dtype=np.float32), np.arange(20) % 2
    data = from_arrays(x, y, x_test=x, y_test=y, num_clients=5)
    assert not any("seen" in key for key in run(data, rounds=1).metrics[-1])
    assert federated.widths(data) == (4, 1, 4)


def test_users_of_the_test_set_alone_are_tested_and_never_train():
    rng = np.random.default_rng(0)
    x, users = rng.normal(size=(100, 6)).astype(np.float32), np.arange(100) % 10
    y, new = (x[:, 0] > 0).astype(int), users > 6
    given = {"x_test": x[new], "y_test": y[new], "users_test": users[new]}
    split = {"partition": "natural", "test_split": "unseen", "users": users[~new]}
    data = from_arrays(x[~new], y[~new], **given, **split)
    last = run(data).metrics[-1]
    assert (
        not data.train.size[7:].any() and data.test.size.tolist() == [2] * 7 + [10] * 3
    )
    parts = 14 * last["seen_accuracy"] + 30 * last["unseen_accuracy"]
    assert last["accuracy"] == pytest.approx(parts / 44)
