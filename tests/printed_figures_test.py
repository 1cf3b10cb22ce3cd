"""The four papers' figures that need no training, from simulated rounds.

Expected is what is printed, see `printed_figures`. Where every round costs the same,
two are simulated; a schedule is simulated to its end.
"""

import functools

import jax
import numpy as np
import pytest

from sparsefl_jax.algorithms import (
    fedavg,
    fedsparsify_global,
    heterofl,
    sensitivity,
    spdst,
)
from sparsefl_jax.sparsity import masks
from sparsefl_jax.wire import ledger
from tests import printed_complement, printed_spafl, silent
from tests import printed_figures as printed
from tests.printed_complement import complement_network, outputs
from tests.printed_figures import settle
from tests.printed_spafl import (
    CIFAR,
    CIFAR_10,
    CIFAR_100,
    CONVOLUTIONS,
    FMNIST,
    MNIST,
    flops_of,
    gbit_of_fedavg,
    gbit_of_heterofl,
    gbit_of_spafl,
    thresholds_of,
)
from tests.silent import STILL, macs, network, shapes, size

SPAFL = {FMNIST: "FMNIST", CIFAR_10: "CIFAR-10", CIFAR_100: "CIFAR-100"}


def test_the_table_is_the_list():
    """No figure without a row or a test, no row or test without a figure."""
    rows = {(paper, place): rest for paper, place, *rest in printed.table()}
    assert len(rows) == len(printed.table()) == len(printed.FIGURES) == 125
    tests = set()
    for f in printed.FIGURES:
        told, ours, kind, test = rows[f.paper, f.place]
        assert (told, kind, test.strip("`")) == (f.printed, f.kind, f.test)
        assert kind in printed.CLASSES
        assert (kind == "later") == (ours == "-") == (test == "-")
        tests.add(f.test)
    assert tests == {"-", *_ids()}


def _ids():
    """Ids of the tests below."""
    for name, function in globals().items():
        if name.startswith("test_") and name != "test_the_table_is_the_list":
            marks = getattr(function, "pytestmark", ())
            (ids,) = [m.args[1] for m in marks if m.name == "parametrize"] or [[None]]
            values = [getattr(v, "values", v) for v in ids]
            for v in values:
                parts = v if isinstance(v, tuple) else (v,)
                yield name if v is None else f"{name}[{'-'.join(map(str, parts))}]"


def some(names, *slow):
    """Parameters of a test, of which some take long."""
    marked = [pytest.param(*n, marks=pytest.mark.slow) for n in slow]
    return [*names, *marked]


# Constants of the networks.


def test_networks():
    lenet, conv4, resnet, small = (
        printed_spafl.experiment(name).model for name in (*SPAFL, "released")
    )
    mnistnet = network("mnistnet", 10, MNIST)
    inputs, _ = shapes(mnistnet).params["fc1"]["kernel"].shape
    settle(
        "test_networks",
        {
            "A.1, LeNet-5-Caffe: parameters": size(lenet),
            "LeNet-5-Caffe: multiply-adds of a sample": macs(lenet),
            "Conv4: weights": size(conv4, ("*kernel",)),
            "Conv4: multiply-adds of a sample": macs(conv4),
            "A.1, ResNet-18: parameters": size(resnet, CONVOLUTIONS),
            "ResNet-18: multiply-adds of a sample": macs(resnet, CONVOLUTIONS),
            "ResNet-18 of the released code: weights": size(small, CONVOLUTIONS),
            "ResNet-18 of the released code: multiply-adds": macs(small, CONVOLUTIONS),
            "Table 1: parameters": size(network("fedsparsify_cnn", 10, CIFAR)),
            "Table 2: parameters": size(network("mlp", 10, MNIST)),
            "Section 4.2, SA: parameters": size(network("sa", 3, (768,))),
            "Section 4.2, IC: parameters": size(network("ic", 62, MNIST)),
            "ResNet-18, CIFAR-10: parameters": size(network("resnet18", 10, CIFAR)),
            "Table 7, FEMNIST: parameters": size(network("femnist_cnn", 62, MNIST)),
            "Table 7, MNIST: parameters": size(mnistnet),
            "Table 7, MNIST: inputs of FC": inputs,
        },
    )


def test_arithmetic_on_print():
    """What the paper must have added up; nothing of it is simulated."""
    thresholds = (64 + 64 + 128 + 128) + (512 + 128) + (128 + 128) + (128 + 10)
    parameters = 804_800 + 4 * (4 * 128 + 2 * 64) + 6  # four of BN, and its counters
    bits = 500 * 2 * 10 * thresholds * 32
    masks_10 = 133.19e9 - 500 * 10 * 807_366 * 32  # without a dense downlink
    masks_100 = 5506.1e9 - 1500 * 10 * 11_159_232 * 32
    flops = 3 * 5 * 500 * 82_489_600 * 500 * 10 / 100  # of a client of 500 samples
    settle(
        "test_arithmetic_on_print",
        {
            "A.1, Conv4: parameters": parameters,
            "A.1, Conv4: thresholds": thresholds,
            "Table 2, CIFAR-10, SpaFL: bits of 1418 thresholds": bits,
            "Table 2, CIFAR-10, SpaFL: Gbit": bits / 1e9,
            "Table 2, CIFAR-10, FedPM: bits of a mask's entry": masks_10
            / (500 * 10 * 807_366),
            "Table 2, CIFAR-100, FedPM: bits of a mask's entry": masks_100
            / (1500 * 10 * 11_159_232),
            "Table 2, CIFAR-10, FedAvg: FLOPs over those of Eq. (33)": 12.382e13
            / flops,
        },
    )


# SpaFL.


@pytest.mark.slow
@pytest.mark.parametrize("name", some([FMNIST, CIFAR_10], [CIFAR_100], ["released"]))
def test_thresholds_travel(name):
    told = thresholds_of(name)
    down, up = (told.entries(way, "thresholds") for way in ("down", "up"))
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


@pytest.mark.slow
@pytest.mark.parametrize("name", some([FMNIST, CIFAR_10], [CIFAR_100]))
def test_fedavg_of_spafl(name):
    row = f"Table 2, {SPAFL[name]}, FedAvg"
    found = {f"{row}: Gbit": gbit_of_fedavg(name)}
    if name != CIFAR_10:  # there it is four times as many: `test_arithmetic_on_print`
        power = {FMNIST: 11, CIFAR_100: 14}[name]
        found[f"{row}: 1e{power} FLOPs"] = flops_of(fedavg, name) / 10**power
    settle(f"test_fedavg_of_spafl[{name}]", found)


@pytest.mark.slow
@pytest.mark.parametrize("name", some([FMNIST, CIFAR_10], [CIFAR_100]))
def test_heterofl_of_spafl(name):
    place = f"Table 2, {SPAFL[name]}, HeteroFL: Gbit"
    settle(f"test_heterofl_of_spafl[{name}]", {place: gbit_of_heterofl(name)})


@pytest.mark.slow
def test_headlines_of_spafl():
    """Of 650 thresholds, and of FLOPs that are not four times too many."""
    ours, theirs = gbit_of_spafl(CIFAR_10), 1.4974e13  # of masks that were trained
    dense, half = flops_of(fedavg, CIFAR_10), flops_of(heterofl, CIFAR_10, budget=0.5)
    settle(
        "test_headlines_of_spafl",
        {
            "Abstract: % of FedAvg's communication": 100
            * ours
            / gbit_of_fedavg(CIFAR_10),
            "Abstract: % of FedAvg's computation": 100 * theirs / dense,
            "Abstract: % of HeteroFL's communication": 100
            * ours
            / gbit_of_heterofl(CIFAR_10),
            "Abstract: % of HeteroFL's computation": 100 * theirs / half,
        },
    )


# FedSparsify: 10 clients, of whom one is simulated, as all hold the same.

FEDSPARSIFY = {
    "mlp": lambda: network("mlp", 10, MNIST),
    "fedsparsify_cnn": lambda: network("fedsparsify_cnn", 10, CIFAR),
}
QUICK = [("mlp", 0.9), ("mlp", 0.99)]
LONG = [
    (name, s)
    for name in FEDSPARSIFY
    for s in printed.FEDSPARSIFY_TABLES[name][1]
    if (name, s) not in QUICK
]


@pytest.mark.parametrize("name, sparsity", some(QUICK, *LONG))
def test_fedsparsify(name, sparsity):
    """The broadcast of round 201 is what round 200 has left."""
    model, table = FEDSPARSIFY[name](), printed.FEDSPARSIFY_TABLES[name][0]
    method = fedsparsify_global(model, STILL, density=1 - sparsity, rounds=200)
    told = silent.rounds(model, method, 201, clients=1)
    alive, sent = (
        [sum(record[f"entries_{way}"].values()) for record in told.records]
        for way in ("down", "up")
    )
    assert alive == sent  # though the paper's C.C. has an upload after its purge
    row = f"{table}, S = {sparsity}"
    settle(
        f"test_fedsparsify[{name}-{sparsity}]",
        {
            f"{row}: Params": alive[-1],
            f"{row}: C.C.": ledger.exchanged(alive, 10) / 1e6,
        },
    )


@pytest.mark.parametrize("name", some(["mlp"], ["fedsparsify_cnn"]))
def test_fedavg_of_fedsparsify(name):
    model, table = FEDSPARSIFY[name](), printed.FEDSPARSIFY_TABLES[name][0]
    method = fedavg(model, STILL)
    told = silent.rounds(model, method, 200, clients=1)
    entries = sum(
        sum(record[f"entries_{way}"].values())
        for record in told.records
        for way in ("down", "up")
    )
    settle(
        f"test_fedavg_of_fedsparsify[{name}]",
        {f"{table}, S = 0: C.C.": 10 * entries / 1e6},
    )


# Complement Sparsification: 10 clients.


@pytest.mark.slow
@pytest.mark.parametrize("name", printed.CLIENTS)
def test_vanilla_flops_of_complement(name):
    """Three passes of two FLOPs a multiply-add, one a bias, which is not ours."""
    model, (table, layers) = complement_network(name), printed.VANILLA[name]
    told = silent.rounds(model, fedavg(model, STILL), 2)
    work, samples = told.logs.clients["work"], told.total("samples")
    found = {}
    for layer in layers.keys() - {"full"}:
        passes = sum(tree[layer]["kernel"].sum() for tree in work[:3])
        counted = 2 * model.macs[layer]["kernel"] * passes / samples
        found[layer] = counted + 3 * outputs(model, layer)
    biases = sum(3 * outputs(model, layer) for layer in found)
    found["full"] = told.total("flops") / samples + biases
    settle(
        f"test_vanilla_flops_of_complement[{name}]",
        {printed.vanilla_place(table, layer): v for layer, v in found.items()},
    )
    # The paper's dense layer of SA has its 32 biases among the multiply-adds.
    assert ledger.complement_flops(768 * 32 + 32, 32) == 147_744 == 148_329 - 585


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, p", [(name, p) for name in printed.CLIENTS for p in printed.PRUNED]
)
def test_complement(name, p):
    """Round 0 is dense and makes the server's mask; in round 1 clients send the rest.

    Of the server's share the paper takes p itself, as here, though no percentile leaves
    40 % of 96 weights.
    """
    model, column = complement_network(name), printed.PRUNED.index(p)
    clients = {layer: c[column] for layer, c in printed.CLIENTS[name].items()}
    told = printed_complement.rounds_of(model, clients, p)
    kernels = {layer: shapes(model).params[layer]["kernel"].size for layer in clients}
    down, up = (told.entries(way, "weights") for way in ("down", "up"))
    measured = {}
    for layer, n in kernels.items():
        path = f"{layer}/kernel"
        assert abs(down[path][1] - (1 - p) * n).max() <= 1
        measured[layer] = up[path][1].mean() / n
    logged = told.records[1]["client"]
    for layer, d in measured.items():
        assert logged[f"client_density/{layer}/kernel"] == pytest.approx(d, rel=1e-6)
    found = {printed.full_place(printed.FULL[name][0], p): 1 - logged["client_density"]}
    table, flops, saved = printed.SAVED[name][0], [], []
    for layer, d in measured.items():
        of_layer = model.macs[layer]["kernel"], outputs(model, layer)
        flops.append(ledger.complement_flops(*of_layer))
        saved.append(100 * ledger.complement_saving(*of_layer, 1 - p, d))
        found[printed.saved_place(table, layer, p)] = saved[-1]
    found[printed.saved_place(table, "full", p)] = np.average(saved, weights=flops)
    settle(f"test_complement[{name}-{p}]", found)


# FLASH.


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "femnist_cnn"])
def test_flash_saves(name):
    """Values alone, without normalisation's statistics, of masks drawn at d."""
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
        told, names = run(dense._replace(mask=mask)), ("weights", "dense")
        return [told.view(ledger.values_only_bits, {w: names}) for w in ("down", "up")]

    whole, found = bits(1.0), {}
    for d in densities:
        (down, up), sparse = whole, bits(d)
        assert down == up and sparse[0] == sparse[1]
        found[f"Table 4, {data}, d = {d}: savings"] = ledger.saving(down, sparse[0])
    settle(f"test_flash_saves[{name}]", found)


@pytest.mark.slow
def test_stage_one_of_flash():
    """A word a layer and client, however wide the layers are."""
    model = network("resnet18", 10, CIFAR, base=2)
    method = sensitivity(model, STILL, density=0.1, prunable=CONVOLUTIONS)
    told = silent.rounds(model, method, 1, clients=10, epochs=2)
    place = "ResNet-18: bits of stage 1, 20 layers, 10 clients"
    settle("test_stage_one_of_flash", {place: told.total("bits_up")})
