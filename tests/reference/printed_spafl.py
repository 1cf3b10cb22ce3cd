"""Simulated rounds of SpaFL's paper: 10 of 100 clients a round, bits and FLOPs.

FLOPs are as in the paper's Eq. (33): a multiply-add is one.
"""

import fnmatch
import functools
import math
from typing import NamedTuple

import numpy as np

from sparsefl_jax.algorithms import fedavg, heterofl, spafl
from sparsefl_jax.models import Model
from sparsefl_jax.sparsity import trees
from tests import silent
from tests.silent import STILL, network, values_only_bits

MNIST, CIFAR = (28, 28, 1), (32, 32, 3)
CONVOLUTIONS = ("*conv*/kernel", "*shortcut/kernel")
RELEASED = {"base": 32, "variant": "preactivation", "init": "torch"}
FMNIST, CIFAR_10, CIFAR_100 = "lenet5_caffe", "conv4", "resnet18"


class Experiment(NamedTuple):
    """A column of Table 2."""

    model: Model
    prunable: tuple[str, ...]
    counted: tuple[str, ...]  # what the paper counts of a network
    rounds: int
    epochs: int
    samples: int  # of a client, on average


def experiment(name) -> Experiment:
    if name == FMNIST:
        model = network("lenet5_caffe", 10, MNIST)
        return Experiment(model, ("*kernel",), ("*",), 500, 5, 600)
    if name == CIFAR_10:
        model = network("conv4", 10, CIFAR, norm="batch")
        return Experiment(model, ("*kernel",), ("*",), 500, 5, 500)
    kwargs = {CIFAR_100: {}, "released": RELEASED}[name]
    model = network("resnet18", 100, CIFAR, **kwargs)
    return Experiment(model, CONVOLUTIONS, CONVOLUTIONS, 1500, 7, 500)


@functools.cache
def rounds_of(method, name, budget=1.0, **kwargs) -> silent.Rounds:
    """Simulates two rounds of two clients with equal costs."""
    this = experiment(name)
    method = method(this.model, STILL, **kwargs)
    told = silent.rounds(
        this.model, method, 2, clients=2, epochs=this.epochs, budget=budget
    )
    first, second = (_repeated(record) for record in told.records)
    assert first == second
    return told


def _repeated(record) -> tuple:
    """What every round has to repeat: all but what is handed in the first one."""
    down = {n: v for n, v in record["entries_down"].items() if "handed/" not in n}
    return down, record["bits_up_by_client"]


def thresholds_of(name) -> silent.Rounds:
    """SpaFL itself, as the paper charges it."""
    prunable = experiment(name).prunable
    return rounds_of(spafl, name, prunable=prunable, charge_delta=False)


def gbit(name, bits) -> float:
    """Of all rounds of ten clients, from the bits of `rounds_of`."""
    return bits / 4 * 10 * experiment(name).rounds / 1e9


def flops_of(method, name, **kwargs) -> float:
    """Of a client in all rounds."""
    this, told = experiment(name), rounds_of(method, name, **kwargs)
    a_round = told.total("flops") / 4 / 2 * this.samples
    return a_round * this.rounds * 10 / 100


def gbit_of_spafl(name) -> float:
    packets = dict.fromkeys(("down", "up"), ("thresholds",))
    told = thresholds_of(name)
    return gbit(name, told.view(values_only_bits, packets))


def gbit_of_fedavg(name) -> float:
    told, counted = rounds_of(fedavg, name), experiment(name).counted
    messages = [
        told.entries(way, packet)
        for way, packets in (("down", ("params", "stats")), ("up", ("delta", "stats")))
        for packet in packets
    ]
    entries = sum(
        int(number.sum())
        for leaves in messages
        for path, number in leaves.items()
        if any(fnmatch.fnmatch(path, glob) for glob in counted)
    )
    return gbit(name, 32 * entries)


def gbit_of_heterofl(name) -> float:
    """As if a slice at rate 0.5 were half of the network."""
    told = rounds_of(heterofl, name, budget=0.5)
    both = dict.fromkeys(("down", "up"), ("params", "stats"))
    leaves = experiment(name).counted
    return gbit(name, told.view(by_width, both, 0.5, leaves))


def by_width(layout, count, names, rate, leaves) -> float:
    """Charges a slice at a rate as that share of the network."""
    total = 0.0
    for name in names:
        one = layout[name]
        size = sum(
            math.prod(leaf.shape)
            for path, leaf in trees.by_path(one.values).items()
            if any(fnmatch.fnmatch(path, glob) for glob in leaves)
        )
        total += one.bits * size * rate * float(np.sum(count[name].sent))
    return total
