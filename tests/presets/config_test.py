"""Every method of every environment of FedSparsify and Complement Sparsification."""

import importlib

import pytest

from configs import feddst_mnist, fedrts_cifar10, ssfl_cifar10
from sparsefl_jax.config import build
from sparsefl_jax.config.defaults import densities, freeze
from sparsefl_jax.presets import complement, fedsparsify
from tests.tiny import network

OPTIONS = {
    "fedsparsify_fashion_mnist": (fedsparsify.METHODS, ("", "clients100", "iid")),
    "fedsparsify_cifar10": (fedsparsify.METHODS, ("", "clients100", "iid")),
    "complement_mnist": (complement.METHODS, ("",)),
    "complement_femnist": (complement.METHODS, ("",)),
    "complement_twitter": (complement.METHODS, ("all", "users10")),
    "complement_sst2": (complement.METHODS, ("",)),
    "feddst_mnist": (feddst_mnist.METHODS, ("",)),
    "fedrts_cifar10": (fedrts_cifar10.METHODS, ("",)),
    "ssfl_cifar10": (ssfl_cifar10.METHODS, ("",)),
}


def densities_of(config):
    """The densities of both stages."""
    return densities(freeze(config)).values()


@pytest.mark.parametrize("file", OPTIONS)
def test_every_method_builds_at_the_density_that_is_asked_for(file):
    methods, (usual, *others) = OPTIONS[file]
    get_config = importlib.import_module(f"configs.{file}").get_config
    seen = set()
    pairs = [(method, usual) for method in methods]
    for method, other in [*pairs, *((methods[0], other) for other in others)]:
        config = get_config(f"{method},{other}")
        given = freeze(config)
        stages = build.build_stages(given, network(config.model.name))
        assert stages[-1].cohort_size in (10, 20, 436)
        seen.add(str(config.algorithm) + str(config.first_stage.get("name")))
        if method not in ("fedavg", "fedprox", "pqsu"):
            config.density = 0.3
        assert (0.3 in densities_of(config)) == (config.density is not None)
    assert len(seen) == len(methods)


def test_methods_of_an_experiment_have_its_own_settings():
    """Beside those of `methods.choose`: tables 5 of SpaFL, 2 of FedSparsify, Sec. 4."""
    spafl = importlib.import_module("configs.spafl_fashion_mnist").get_config
    fjord, heterofl, fedpm = map(spafl, ("fjord", "heterofl", "fedpm"))
    assert fjord.algorithm.weighting == spafl("fedavg").algorithm.weighting == "uniform"
    assert spafl("").optimizer.momentum == spafl("fedavg").optimizer.momentum == 0.9
    assert (fedpm.optimizer.name, heterofl.budgets) == ("adam", ((0.5, 1.0),))
    get_config = importlib.import_module("configs.fedsparsify_cifar10").get_config
    grasp = get_config("grasp").first_stage
    assert (grasp.temperature, grasp.mode, grasp.halves) == (1.0, "inference", False)
    assert get_config("prunefl").algorithm.half_life == 1000.0
    get_config = importlib.import_module("configs.complement_mnist").get_config
    pqsu, prunefl = get_config("pqsu").algorithm, get_config("prunefl")
    assert (pqsu.density, pqsu.quantize) == (0.7, "up")
    assert (prunefl.optimizer.learning_rate, prunefl.batch_size) == (0.1, 20)
