"""Personal models: repeated evaluations, slices by budget, and errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax import models
from sparsefl_jax.algorithms import fedavg, fedspa, heterofl, local_only, spafl
from sparsefl_jax.config import build
from sparsefl_jax.config.defaults import freeze
from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.data import from_arrays
from sparsefl_jax.runs import experiment, results, simulate
from sparsefl_jax.simulation import initial_state, judge, placement
from sparsefl_jax.sparsity import masks
from sparsefl_jax.training import local
from tests.tiny import noised, tiny_config

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def world():
    """Returns five clients of uneven size, a small network and its initial model."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(90, 2, 2, 1)).astype(np.float32), np.arange(90) % 3
    split = dict(partition="dirichlet", alpha=0.5, min_samples=2, val_fraction=0.2)
    given = x[:60], y[:60]
    data = from_arrays(*given, x_test=x[60:], y_test=y[60:], num_clients=5, **split)
    model = models.build("mlp", 3, (2, 2, 1), widths=(6,))
    return data, model, initial_state.initial_model(KEY, model)


def begin(world, factory, budgets=None, **kwargs):
    data, model, sparse = world
    optimizer = local.make_optimizer(learning_rate=0.1)
    method = factory(model, optimizer, **kwargs)
    stage = Stage(method, 1, 2, batch_size=4)
    plan = placement.make_plan(stage, jax.tree.map(lambda m: m > 0, model.macs))
    population = placement.make_population(plan, data, budgets)
    state = jax.device_get(initial_state.start(KEY, plan, sparse, population.info))
    judged = judge.make_evaluation(model, data, budgets=budgets)(stage)
    return method, state, lambda state, seen=None: judged(KEY, state, {}, seen)


def test_the_samples_lie_on_every_device(world):
    """So no evaluation copies them from one to another; a CPU has two in tests."""
    _, state, evaluation = begin(world, spafl)
    first = evaluation(state)
    with jax.transfer_guard_device_to_device("disallow"):
        again = evaluation(state)
    assert first["models"] == again["models"]


def by_hand(world, sparse, client):
    data, model, _ = world
    rows = data.test.index[client, : data.test.size[client]]
    params = masks.apply(sparse.params, sparse.mask)
    logits, _ = model.apply(params, sparse.stats, data.x_test[rows], train=False)
    return float(np.mean(np.argmax(logits, -1) == data.y_test[rows]))


def own_share(world, method, state, client, budgets=None):
    """Returns the accuracy of a client's own model on its test samples."""
    rows = state.clients, placement.client_info(world[0], budgets)
    row, mine = jax.tree.map(lambda v: jnp.asarray(v[client]), rows)
    sparse = method.personalize(KEY, state.server, row, mine)["personal"]
    return by_hand(world, sparse, client)


def test_only_clients_that_took_part_are_judged_again(world):
    method, state, evaluation = begin(world, spafl)
    params = jax.tree.map(np.array, state.clients.trained.params)
    params["fc2"]["kernel"] *= -1
    trained = state.clients.trained._replace(params=params)
    other = state._replace(clients=state.clients._replace(trained=trained))
    first, moved = (
        [own_share(world, method, each, i) for i in range(5)] for each in (state, other)
    )
    again, *rest = [i for i in range(5) if first[i] != moved[i]]
    assert rest
    before = evaluation(state)
    assert before["accuracy"] == pytest.approx(np.mean(first), abs=1e-6)
    record = evaluation(other, [again])
    some = [moved[i] if i == again else first[i] for i in range(5)]
    assert record["accuracy"] == pytest.approx(np.mean(some), abs=1e-6)
    assert evaluation(other)["accuracy"] == pytest.approx(np.mean(moved), abs=1e-6)
    assert 0 <= record["val_accuracy"] <= 1
    assert record["models"]["personal"]["layer_density"] == 1


def test_a_cohort_smaller_than_the_devices_is_judged_where_it_trained(world):
    """A state on some devices and a judge on all devices do not fit."""
    data, model, _ = world
    method = spafl(model, local.make_optimizer())
    stage = Stage(method, 2, 1, batch_size=4)

    def judged(devices):
        run = simulate.run(KEY, [stage], model, data, devices=devices)
        return [r["models"] for r in run.metrics if "models" in r]

    one, _ = jax.devices()
    assert judged([one]) == judged(None)


def test_what_a_model_reads_says_when_it_is_judged_again(world):
    """Its client's row: when that trains; a budget: once for it; else always."""
    _, model, _ = world
    own, alone, sliced = (
        factory(model, local.make_optimizer())
        for factory in (spafl, local_only, heterofl)
    )

    def with_server(key, server, client, info):
        models = own.personalize(key, server, client, info)
        return {name: m._replace(stats=server.delta) for name, m in models.items()}

    for method, found in (
        (own, (True, False)),
        (alone, (True, False)),
        (own.replace(personalize=with_server), (False, False)),
        (noised(own), (False, False)),
        (sliced, (False, True)),
        (noised(sliced), (False, False)),
    ):
        assert judge.dependence(method, model) == found


@pytest.mark.parametrize(
    "factory, given",
    [
        (heterofl, {"budgets": np.array([0.5, 1.0, 0.5, 0.2, 1.0], np.float32)}),
        (fedspa, {"density": 0.3, "shared": False}),  # though it keeps nothing
    ],
)
def test_each_client_is_judged_with_a_model_of_its_own(world, factory, given):
    budgets = given.get("budgets")
    method, state, evaluation = begin(world, factory, **given)
    record = evaluation(state)
    shares = [own_share(world, method, state, i, budgets) for i in range(5)]
    assert len(set(shares)) > 1
    assert record["accuracy"] == pytest.approx(np.mean(shares), abs=1e-6)


@pytest.mark.parametrize("factory", [spafl, heterofl])  # a client's own; the server's
def test_personal_models_stand_in_the_order_that_the_method_gives(world, factory):
    _, model, _ = world
    method = factory(model, local.make_optimizer())

    def two(*args):
        (own,) = method.personalize(*args).values()
        return {"zeta": own, "alpha": masks.prune(own, masks.full(own.mask))}

    _, state, evaluation = begin(world, lambda *_: method.replace(personalize=two))
    record = evaluation(state)
    assert list(record["models"]) == ["zeta", "alpha"]


def test_what_a_metric_needs(world):
    data, model, _ = world
    make = local.make_optimizer()
    stages = [Stage(spafl(model, make), 1, 2)]
    with pytest.raises(ValueError, match="metric='best', expected one of auto"):
        judge.check_metric("best", stages, model, data)
    without = data._replace(test=data.test._replace(size=np.zeros(5, np.int32)))
    for metric in ("auto", "clients"):
        with pytest.raises(ValueError, match="needs test samples of clients"):
            judge.check_metric(metric, stages, model, without)
    judge.check_metric("pooled", stages, model, without)
    judge.check_metric("auto", [Stage(fedavg(model, make), 1, 2)], model, without)


def test_clients_models_are_read_back_from_a_run(tmp_path):
    """Deploying draws: what is read back repeats the draw of the last evaluation."""
    config = tiny_config(tmp_path)
    config.first_stage, config.algorithm = {}, {"name": "tests.tiny:noisy"}
    told = experiment.run(config, tmp_path / "run", progress=False)
    data = build.build_data(freeze(config))
    world = data, build.build_model(freeze(config), data), None
    each = results.load_clients(tmp_path / "run", range(8))
    shares = [by_hand(world, each[i]["personal"], i) for i in range(8)]
    assert told["accuracy"]["personal"]["final"] == pytest.approx(np.mean(shares))
    with pytest.raises(ValueError, match=r"clients=8, expected in \[0, 7\]"):
        results.load_clients(tmp_path / "run", [8])
