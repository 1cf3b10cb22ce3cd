"""SparsyFed's saving, from the packets of simulated rounds."""

import pytest

from sparsefl_jax.algorithms import sparsyfed
from sparsefl_jax.wire import paper_counts
from tests import silent
from tests.printed_figures import settle
from tests.printed_spafl import CIFAR
from tests.silent import STILL, network


@pytest.mark.slow
def test_sparsyfed_saves():
    """Charges the values of a downlink when all clients have kept the same weights."""
    model, found = network("resnet18", 10, CIFAR), {}
    initial, names = silent.distinct(model), ("weights", "dense", "stats")
    for sparsity in (0.9, 0.95, 0.99):
        # The silent network has no inputs to save.
        method = sparsyfed(model, STILL, density=1 - sparsity, sparse_inputs=False)
        simulated = silent.rounds(model, method, 2, initial=initial, clients=1)
        first, second = (
            sum(round["entries_down"][name] for name in names)
            for round in simulated.records
        )
        place = f"ResNet-18, S = {sparsity}"
        if sparsity == 0.95:
            found[f"{place}: weights that travel"] = simulated.records[1][
                "entries_down"
            ]["weights"]
            found[f"{place}: times less than dense"] = first / second
        found[f"{place}: savings of values"] = paper_counts.saving(
            32 * first, 32 * second
        )
    settle("test_sparsyfed_saves", found)
