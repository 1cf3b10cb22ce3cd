"""The configurations of SpaFL's tables have the settings of the paper."""

import importlib

import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.config import build, defaults
from sparsefl_jax.presets import spafl

FILES = ("spafl_fashion_mnist", "spafl_cifar10", "spafl_cifar100")


@pytest.mark.parametrize("file", FILES)
def test_methods_have_the_settings_of_their_paper(file):
    get_config = importlib.import_module(f"configs.{file}").get_config
    for method in spafl.METHODS:
        config, other = get_config(method), get_config(f"{method},release")
        assert (config.cohort_size, config.metric) == (10, "clients")
        assert config.drop_last == (file == "spafl_cifar10")
        if method not in ("spafl", "local"):  # the paper gives their settings
            assert config.optimizer == other.optimizer
    assert get_config("spafl").algorithm.clamp
    assert not get_config("release").algorithm.get("clamp")
    static = get_config("heterofl").model.get("norm")
    assert static == ("static" if "cifar" in file else None)


def test_the_learning_rate_decays_by_a_factor_down_to_a_floor():
    config = defaults.default_config()
    config.optimizer.learning_rate, config.final_learning_rate = 0.5, 0.3
    config.lr_decay = 0.9
    optimizer = build.build_optimizer(config)
    rates = []
    for round in (0, 1, 4, 5, 90):
        tx = optimizer(round)
        updates, _ = tx.update(jnp.ones(1), tx.init(jnp.ones(1)))
        rates.append(-float(updates[0]))
    np.testing.assert_allclose(rates, [0.5, 0.45, 0.32805, 0.3, 0.3], rtol=1e-5)
