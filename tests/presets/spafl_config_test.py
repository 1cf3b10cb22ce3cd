"""The configurations of SpaFL's tables: every method and preset builds."""

import importlib

import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.presets import spafl
from sparsefl_jax.runs.config import build, defaults
from sparsefl_jax.runs.config.defaults import freeze
from tests.tiny import network

FILES = ("spafl_fashion_mnist", "spafl_cifar10", "spafl_cifar100")


@pytest.mark.parametrize("file", FILES)
def test_every_method_variant_and_preset_builds(file):
    get_config = importlib.import_module(f"configs.{file}").get_config
    seen = set()
    for method in spafl.METHODS:
        for variant in ("", *(v for v, of in spafl.VARIANTS.items() if of == method)):
            for preset in spafl.PRESETS:
                config = get_config(",".join((method, variant, preset)))
                budgets = build.build_budgets(freeze(config))
                (stage,) = build.build_stages(
                    config, network(config.model.name), budgets
                )
                assert stage.cohort_size == 10 and config.metric == "clients"
                assert stage.drop_last == (file == "spafl_cifar10")
                seen.add(str(config.algorithm))
                if method not in ("spafl", "local"):  # the paper gives their settings
                    assert config.optimizer == get_config(method).optimizer
    assert get_config("spafl").algorithm.clamp
    assert not get_config("release").algorithm.get("clamp")
    assert len(seen) == 6 + 2 + 5  # SpaFL's, Local's, the others'
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
