"""FedSparsify's printed figures, from one simulated client: all ten hold the same."""

import pytest

from sparsefl_jax.algorithms import (
    fedavg,
    fedsparsify_global,
)
from sparsefl_jax.wire import paper_counts
from tests import printed_figures as printed
from tests import silent
from tests.printed_figures import settle, some
from tests.printed_spafl import (
    CIFAR,
    MNIST,
)
from tests.silent import STILL, network

FEDSPARSIFY = {
    "mlp": lambda: network("mlp", 10, MNIST),
    "fedsparsify_cnn": lambda: network("fedsparsify_cnn", 10, CIFAR),
}
QUICK = [("mlp", 0.9)]
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
    simulated = silent.rounds(model, method, 201, clients=1)
    alive, sent = (
        [sum(record[f"entries_{way}"].values()) for record in simulated.records]
        for way in ("down", "up")
    )
    assert alive == sent  # though the paper's C.C. has an upload after its purge
    row = f"{table}, S = {sparsity}"
    settle(
        f"test_fedsparsify[{name}-{sparsity}]",
        {
            f"{row}: Params": alive[-1],
            f"{row}: C.C.": paper_counts.exchanged(alive, 10) / 1e6,
        },
    )


@pytest.mark.parametrize("name", some(["mlp"], ["fedsparsify_cnn"]))
def test_fedavg_of_fedsparsify(name):
    model, table = FEDSPARSIFY[name](), printed.FEDSPARSIFY_TABLES[name][0]
    method = fedavg(model, STILL)
    simulated = silent.rounds(model, method, 200, clients=1)
    entries = sum(
        sum(record[f"entries_{way}"].values())
        for record in simulated.records
        for way in ("down", "up")
    )
    settle(
        f"test_fedavg_of_fedsparsify[{name}]",
        {f"{table}, S = 0: C.C.": 10 * entries / 1e6},
    )
