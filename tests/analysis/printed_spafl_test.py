"""SpaFL's printed figures that need no training, from simulated rounds."""

import numpy as np
import pytest

from sparsefl_jax.algorithms import fedavg, heterofl
from tests.reference.printed_figures import settle
from tests.reference.printed_spafl import (
    CIFAR_10,
    CIFAR_100,
    FMNIST,
    flops_of,
    gbit_of_fedavg,
    gbit_of_heterofl,
    gbit_of_spafl,
    thresholds_of,
)

pytestmark = pytest.mark.slow

SPAFL = {FMNIST: "FMNIST", CIFAR_10: "CIFAR-10", CIFAR_100: "CIFAR-100"}


@pytest.mark.parametrize("name", [*SPAFL, "released"])
def test_thresholds_travel(name):
    simulated = thresholds_of(name)
    down, up = (simulated.entries(way, "thresholds") for way in ("down", "up"))
    for path, entries in down.items():
        np.testing.assert_array_equal(entries, up[path])
    places = {
        FMNIST: ("A.1, LeNet-5-Caffe: thresholds", "Table 2, FMNIST, SpaFL: Gbit"),
        CIFAR_10: (
            "Conv4: thresholds that it has",
            "Table 2, CIFAR-10, SpaFL: Gbit of 650 thresholds",
        ),
        CIFAR_100: ("A.1, ResNet-18: thresholds", "Table 2, CIFAR-100, SpaFL: Gbit"),
        "released": (
            "ResNet-18 of the released code: thresholds",
            "ResNet-18 of the released code, SpaFL: Gbit",
        ),
    }[name]
    count = sum(int(entries[0, 0]) for entries in up.values())
    found = dict(zip(places, (count, gbit_of_spafl(name)), strict=True))
    settle(f"test_thresholds_travel[{name}]", found)


@pytest.mark.parametrize("name", SPAFL)
def test_fedavg_of_spafl(name):
    row = f"Table 2, {SPAFL[name]}, FedAvg"
    found = {f"{row}: Gbit": gbit_of_fedavg(name)}
    if name != CIFAR_10:  # there it is four times as many: `test_arithmetic_on_print`
        power = {FMNIST: 11, CIFAR_100: 14}[name]
        found[f"{row}: 1e{power} FLOPs"] = flops_of(fedavg, name) / 10**power
    settle(f"test_fedavg_of_spafl[{name}]", found)


@pytest.mark.parametrize("name", SPAFL)
def test_heterofl_of_spafl(name):
    place = f"Table 2, {SPAFL[name]}, HeteroFL: Gbit"
    settle(f"test_heterofl_of_spafl[{name}]", {place: gbit_of_heterofl(name)})


def test_headlines_of_spafl():
    """Counts 650 thresholds, and FLOPs that are not four times too many."""
    ours, theirs = gbit_of_spafl(CIFAR_10), 1.4974e13  # of masks that were trained
    dense, half = flops_of(fedavg, CIFAR_10), flops_of(heterofl, CIFAR_10, budget=0.5)
    whole, slices = gbit_of_fedavg(CIFAR_10), gbit_of_heterofl(CIFAR_10)
    settle(
        "test_headlines_of_spafl",
        {
            "Abstract: % of FedAvg's communication": 100 * ours / whole,
            "Abstract: % of FedAvg's computation": 100 * theirs / dense,
            "Abstract: % of HeteroFL's communication": 100 * ours / slices,
            "Abstract: % of HeteroFL's computation": 100 * theirs / half,
        },
    )
