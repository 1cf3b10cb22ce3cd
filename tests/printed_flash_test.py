"""FLASH's printed figures that need no training, from simulated rounds."""

import functools

import jax
import numpy as np
import pytest

from sparsefl_jax.algorithms import (
    sensitivity,
    spdst,
)
from sparsefl_jax.sparsity import masks
from sparsefl_jax.wire import paper_counts
from tests import silent
from tests.printed_figures import settle
from tests.printed_spafl import (
    CIFAR,
    CONVOLUTIONS,
    MNIST,
)
from tests.silent import STILL, network


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "femnist_cnn"])
def test_flash_saves(name):
    """Counts only values, without normalisation's statistics, of masks drawn at d."""
    model, prunable, data, densities = {
        "resnet18": (network("resnet18", 10, CIFAR), CONVOLUTIONS, "CIFAR-10",
                     (0.05, 0.1)),
        "femnist_cnn": (network("femnist_cnn", 62, MNIST),
                        ("conv2/kernel", "fc1/kernel"), "FEMNIST", (0.05,)),
    }[name]  # fmt: skip
    method = spdst(model, STILL, prunable=prunable)
    run, rng = silent.simulator(model, method, 1, clients=1), np.random.default_rng(0)
    dense = silent.distinct(model)
    select = masks.prunable(dense.params, prunable)

    def drawn(like, chosen, density):
        order = rng.permutation(like.size) if chosen else np.zeros(like.size)
        return order.reshape(like.shape) < round(density * like.size)

    def bits(density):
        mask = jax.tree.map(
            functools.partial(drawn, density=density), dense.mask, select
        )
        simulated, names = run(dense._replace(mask=mask)), ("weights", "dense")
        return [
            simulated.view(paper_counts.values_only_bits, {w: names})
            for w in ("down", "up")
        ]

    whole, found = bits(1.0), {}
    for d in densities:
        (down, up), sparse = whole, bits(d)
        assert down == up and sparse[0] == sparse[1]
        found[f"Table 4, {data}, d = {d}: savings"] = paper_counts.saving(
            down, sparse[0]
        )
    settle(f"test_flash_saves[{name}]", found)


@pytest.mark.slow
def test_stage_one_of_flash():
    """Each client sends a word for every layer, however wide the layers are."""
    model = network("resnet18", 10, CIFAR, base=2)
    method = sensitivity(model, STILL, density=0.1, prunable=CONVOLUTIONS)
    simulated = silent.rounds(model, method, 1, clients=10, epochs=2)
    place = "ResNet-18: bits of stage 1, 20 layers, 10 clients"
    settle("test_stage_one_of_flash", {place: simulated.total("bits_up")})
