"""Printed savings of FedSparsify, FLASH, SparsyFed and ZeroFL, by simulated rounds."""

import functools

import jax
import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.analysis import fedsparsify as paper
from sparsefl_jax.sparsity import masks
from tests import silent
from tests.reference.printed_figures import settle
from tests.reference.printed_spafl import CIFAR, CONVOLUTIONS, MNIST
from tests.silent import STILL, network, values_only_bits

pytestmark = pytest.mark.slow

SPARSITIES = (0.8, 0.85, 0.9, 0.95, 0.99)
FEDSPARSIFY = {
    "mlp": ("Table 2", lambda: network("mlp", 10, MNIST)),
    "fedsparsify_cnn": ("Table 1", lambda: network("fedsparsify_cnn", 10, CIFAR)),
}


def exchanged(simulated):
    """Returns the entries sent down and up, by round."""
    return [
        [sum(record[f"entries_{way}"].values()) for record in simulated.records]
        for way in ("down", "up")
    ]


@pytest.mark.parametrize(
    "name, sparsity", [(n, s) for n in FEDSPARSIFY for s in SPARSITIES]
)
def test_fedsparsify(name, sparsity):
    """Of one client, as all ten hold the same; round 201 sends what 200 has left."""
    table, make = FEDSPARSIFY[name]
    model = make()
    method = sfl.fedsparsify_global(model, STILL, density=1 - sparsity, rounds=200)
    alive, sent = exchanged(silent.rounds(model, method, 201, clients=1))
    assert alive == sent  # though the paper's C.C. has an upload after its purge
    row = f"{table}, S = {sparsity}"
    settle(
        f"test_fedsparsify[{name}-{sparsity}]",
        {
            f"{row}: Params": alive[-1],
            f"{row}: C.C.": paper.exchanged(alive, 10) / 1e6,
        },
    )


@pytest.mark.parametrize("name", FEDSPARSIFY)
def test_fedavg_of_fedsparsify(name):
    table, make = FEDSPARSIFY[name]
    model = make()
    simulated = silent.rounds(model, sfl.fedavg(model, STILL), 200, clients=1)
    entries = sum(map(sum, exchanged(simulated)))
    found = {f"{table}, S = 0: C.C.": 10 * entries / 1e6}
    settle(f"test_fedavg_of_fedsparsify[{name}]", found)


@pytest.mark.parametrize("name", ["resnet18", "femnist_cnn"])
def test_flash_saves(name):
    """Counts only values, without normalisation's statistics, of masks drawn at d."""
    model, prunable, data, densities = {
        "resnet18": (network("resnet18", 10, CIFAR), CONVOLUTIONS, "CIFAR-10",
                     (0.05, 0.1)),
        "femnist_cnn": (network("femnist_cnn", 62, MNIST),
                        ("conv2/kernel", "fc1/kernel"), "FEMNIST", (0.05,)),
    }[name]  # fmt: skip
    method = sfl.spdst(model, STILL, prunable=prunable)
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
        return [simulated.view(values_only_bits, {w: names}) for w in ("down", "up")]

    whole, found = bits(1.0), {}
    for d in densities:
        (down, up), sparse = whole, bits(d)
        assert down == up and sparse[0] == sparse[1]
        found[f"Table 4, {data}, d = {d}: savings"] = down / sparse[0]
    settle(f"test_flash_saves[{name}]", found)


def test_stage_one_of_flash():
    """Each client sends a word for every layer, however wide the layers are."""
    model = network("resnet18", 10, CIFAR, base=2)
    method = sfl.sensitivity(model, STILL, density=0.1, prunable=CONVOLUTIONS)
    simulated = silent.rounds(model, method, 1, clients=10, epochs=2)
    place = "ResNet-18: bits of stage 1, 20 layers, 10 clients"
    settle("test_stage_one_of_flash", {place: simulated.total("bits_up")})


def test_sparsyfed_saves():
    """Charges the values of a downlink when all clients have kept the same weights."""
    model, found = network("resnet18", 10, CIFAR), {}
    initial, names = silent.distinct(model), ("weights", "dense", "stats")
    for sparsity in (0.9, 0.95, 0.99):
        # The silent network has no inputs to save.
        method = sfl.sparsyfed(model, STILL, density=1 - sparsity, sparse_inputs=False)
        simulated = silent.rounds(model, method, 2, initial=initial, clients=1)
        first, second = (
            sum(round["entries_down"][name] for name in names)
            for round in simulated.records
        )
        place = f"ResNet-18, S = {sparsity}"
        if sparsity == 0.95:
            sent = simulated.records[1]["entries_down"]["weights"]
            found[f"{place}: weights that travel"] = sent
            found[f"{place}: times less than dense"] = first / second
        found[f"{place}: savings of values"] = first / second
    settle("test_sparsyfed_saves", found)


def test_zerofl_saves():
    """Charges the uplink's values twice, as indices of a word each; nothing else."""
    model, found = network("resnet18", 10, CIFAR), {}
    initial = silent.distinct(model)
    for sp in (0.9, 0.95):
        for ratio in (0.0, 0.1, 0.2):
            method = sfl.zerofl(
                model,
                STILL,
                density=1 - sp,
                mask_ratio=ratio,
                uplink="weights",
                sparse_inputs=False,  # the silent network has none
                prunable=("layer*/conv*/kernel",),
            )
            simulated = silent.rounds(model, method, 1, initial=initial, clients=1)
            dense = simulated.view(values_only_bits, {"down": ("params",)})
            packets = {"up": ("weights", "dense")}
            bits = simulated.view(values_only_bits, packets, words=2)
            found[f"File sizes, sp = {sp}, r = {ratio}: savings"] = dense / bits
    for sp, d in ((0.9, 0.1), (0.95, 0.05)):  # FLASH quotes the last of each
        quoted = found[f"File sizes, sp = {sp}, r = 0.2: savings"]
        found[f"Table 4, ZeroFL, d = {d}: savings"] = quoted
    settle("test_zerofl_saves", found)
