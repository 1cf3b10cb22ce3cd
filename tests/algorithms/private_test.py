"""Private methods: clipping and noise by hand, epsilon, what is refused and told."""

import math

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.algorithms.private import epsilon
from sparsefl_jax.config import build
from sparsefl_jax.config.defaults import default_config, freeze
from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.runs import setup
from sparsefl_jax.runs.plan import trace
from sparsefl_jax.simulation import initial_state
from sparsefl_jax.wire.packets import Packet
from tests.reference.by_hand import context, server_context
from tests.simulation.simulate_test import linear
from tests.testing.contract_laws_test import flat_model, images
from tests.tiny import federation

OPTIMIZER = sfl.training.make_optimizer("sgd", learning_rate=0.5)
CTX = context(size=9)
DATA, MODEL, _ = federation([2] * 4, 8, 2, (6,), (3,))


def averaging(model=None, **kwargs):
    model = model or sfl.testing.tiny_model()
    return sfl.fedavg(model, OPTIMIZER, weighting="uniform", **kwargs)


def uplink(**leaves):
    delta = {name: jnp.array(v, jnp.float32) for name, v in leaves.items()}
    return {"delta": Packet(delta), "stats": Packet({})}


@pytest.mark.parametrize(
    "clip, wanted",
    [(6.5, [1.5, 2, 6]), (13, [3, 4, 12]), (26, [3, 4, 12]), (math.inf, [3, 4, 12])],
)
def test_a_difference_of_norm_13_is_scaled_to_the_clip(clip, wanted):
    method = sfl.private(averaging(), clip=clip, noise_multiplier=0)
    summand = method.contribute(CTX, uplink(w=[3, 4], b=[12]))
    delta = summand["sum"]["delta"]
    np.testing.assert_allclose([*delta["w"], *delta["b"]], wanted, rtol=1e-6)
    assert float(summand["weight"]) == 1


def noise_of(method, seed=0):
    """Returns the noise in the mean of four clients that have changed nothing."""
    zeros = {"v": jnp.zeros(60_000), "w": jnp.zeros(60_000)}
    server = method.init(jax.random.key(0), sfl.SparseModel(zeros, None, {}))
    total = {"sum": {"delta": zeros, "stats": {}}, "weight": jnp.float32(4)}
    moved, _ = method.aggregate(jax.random.key(seed), server_context(), server, total)
    return [np.asarray(moved.params[name]) for name in "vw"]


def alike(one, other):
    return np.corrcoef(one[0], other[0])[0, 1]


def test_the_noise_of_a_mean_of_four_has_deviation_2_clip_multiplier_over_4():
    method = sfl.private(averaging(), clip=0.25, noise_multiplier=3)
    (v, w), (other, _) = noise_of(method, 0), noise_of(method, 1)
    wanted = 3 * 2 * 0.25 / 4  # 0.375, with a standard error of 0.0011
    for values in (v, w):
        assert np.std(values) == pytest.approx(wanted, abs=0.005)
        assert np.mean(values) == pytest.approx(0, abs=0.007)
        assert np.mean(np.abs(values) < wanted) == pytest.approx(0.6827, abs=0.01)
    for pair in ((v, w), (v, other)):
        assert np.corrcoef(*pair)[0, 1] == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize(
    "change", [{"clip": 0.5}, {"noise_multiplier": 1.5}, {"fingerprint": "rate=0.1"}]
)
def test_methods_that_differ_share_no_noise_with_one_seed(change):
    """Two noises of one draw would be multiples of each other, correlation 1."""
    settings = {"clip": 0.25, "noise_multiplier": 3}
    method = sfl.private(averaging(), **settings)
    other = sfl.private(averaging(), **settings | change)
    assert alike(noise_of(method), noise_of(other)) == pytest.approx(0, abs=0.02)
    again = sfl.private(averaging(), **settings, delta=0.1)
    np.testing.assert_array_equal(noise_of(method), noise_of(again))


def configured_noise(**change):
    """Returns the noise of a configuration after changes of some fields."""
    config = configured(clip=0.5, noise_multiplier=1.5)
    config.final_learning_rate = 0.01
    config.update_from_flattened_dict(change)
    (stage,) = build.build_stages(freeze(config), linear())
    return noise_of(stage.algorithm)


def test_the_noise_follows_what_a_resumed_run_may_not_change():
    noise, other = configured_noise(), {"optimizer.learning_rate": 0.05}
    assert alike(noise, configured_noise(**other)) == pytest.approx(0, abs=0.02)
    same = {
        "num_rounds": 9,
        "eval_every": 3,
        "until.gbit": 2.0,
        "chunk": "2",
        "seed": 5,
    }
    np.testing.assert_array_equal(configured_noise(**same), noise)


def test_epsilon_of_full_cohorts_is_that_of_the_gaussian_mechanism_by_hand():
    """RDP a T / (2 s^2), converted as in Canonne et al., NeurIPS 2020, Prop. 12."""
    orders = np.array([*np.arange(1.1, 11, 0.1), *range(11, 64), 128, 256, 512, 1024])
    rounds, multiplier, delta = 20, 5.0, 1e-3
    spent = orders * rounds / (2 * multiplier**2)
    told = spent + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    found = epsilon(50, 50, rounds, multiplier, delta)
    assert found == pytest.approx(told.min(), rel=1e-3)


def test_epsilon_is_that_of_dp_accounting_for_replaced_clients():
    noise = dp_accounting.GaussianDpEvent(2.0)
    event = dp_accounting.SampledWithoutReplacementDpEvent(500, 20, noise)
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = dp_accounting.rdp.RdpAccountant(neighboring_relation=relation)
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, 30))
    found = epsilon(500, 20, 30, 2.0, 1e-4)
    assert found == pytest.approx(accountant.get_epsilon(1e-4), rel=1e-9)
    assert epsilon(500, 20, 30, 0.0, 1e-4) == math.inf
    assert epsilon(500, 20, 0, 2.0, 1e-4) == 0


def traced(method):
    stage = Stage(sfl.private(method, clip=1, noise_multiplier=1), 2, 2)
    return trace(stage, initial_state.initial_shapes(MODEL), DATA)


@pytest.mark.parametrize(
    "name, kwargs, told",
    [
        ("fedavg", {}, "weighting='examples', expected 'uniform'"),
        ("spdst", {}, "sums no delta, expected one weighted_sum of .'delta'"),
        ("jmwst", {"density": 0.5}, "no votes"),
        ("fjord", {}, "covered_sum|personalize is set"),
        ("pqsu", {"density": 0.5}, "flag sent, expected sent=True"),
    ],
)
def test_a_method_that_sums_anything_else_is_refused_by_name(name, kwargs, told):
    with pytest.raises(ValueError, match=told) as caught:
        traced(getattr(sfl, name)(MODEL, OPTIMIZER, **kwargs))
    assert "\n" not in str(caught.value)


def test_a_run_that_the_accountant_does_not_know_is_refused():
    stage = Stage(sfl.private(averaging(MODEL), clip=1, noise_multiplier=1), 2, 2)
    sampled = stage._replace(sampler=lambda key, round: jnp.arange(2))
    system = sfl.make_system("mobile", 4)
    for stages, settings, told in (
        ([stage], {"budgets": np.ones(4)}, "budgets is set, expected None"),
        ([stage], {"system": system}, "system is set, expected None"),
        ([sampled], {}, "sampler is set, expected None"),
        ([stage, stage], {}, "2 stages, expected one"),
    ):
        with pytest.raises(ValueError, match=told):
            setup.check_setup(setup.make(stages, MODEL, DATA, **settings))


def test_arguments_out_of_range_are_refused():
    method = averaging()
    personal = method.replace(personalize=lambda key, server, client, info: {})
    twice = sfl.private(method, clip=1, noise_multiplier=0)
    for whole, wrong, told in (
        (method, {"clip": math.inf}, "clip=inf, expected a finite number"),
        (method, {"noise_multiplier": -1}, "noise_multiplier=-1"),
        (personal, {}, "personalize is set, expected None"),
        (twice, {}, "private already"),
    ):
        with pytest.raises(ValueError, match=told):
            sfl.private(whole, **{"clip": 1, "noise_multiplier": 1} | wrong)
    with pytest.raises(ValueError, match="stats, expected.*running statistics"):
        twice.contribute(CTX, uplink(w=[1]) | {"stats": Packet({"mean": 1.0})})


def configured(**privacy):
    config = default_config()
    config.model.name, config.dataset = "mlp", "fashion_mnist_sample"
    config.algorithm.weighting = "uniform"
    config.update({"num_clients": 20, "cohort_size": 4, "num_rounds": 2})
    config.privacy.update(privacy)
    return config


def test_a_configuration_makes_its_method_private():
    model = sfl.testing.tiny_model()
    given = configured(clip=0.5, noise_multiplier=1.5)
    (stage,) = build.build_stages(given, model)
    told = stage.algorithm.privacy
    assert told["clip"] == 0.5 and told["noise_multiplier"] == 1.5
    (plain,) = build.build_stages(freeze(configured()), model)
    assert plain.algorithm.privacy is None
    with pytest.raises(ValueError, match=r"privacy.noise_multiplier is missing"):
        build.build_stages(freeze(configured(clip=0.5)), model)


@pytest.mark.slow
def test_a_private_method_obeys_the_laws_of_methods():
    def method(model, optimizer):
        plain = sfl.fedavg(model, optimizer, weighting="uniform")
        return sfl.private(plain, clip=0.1, noise_multiplier=0.5)

    data = images()  # whose network has no statistics
    sfl.check_algorithm(method, model=flat_model(data), data=data, progress=False)
