"""ZeroFL's savings, from the packets of simulated rounds."""

import pytest

from sparsefl_jax.algorithms import zerofl
from sparsefl_jax.wire import paper_counts
from tests import silent
from tests.printed_figures import settle
from tests.printed_spafl import CIFAR
from tests.silent import STILL, network


@pytest.mark.slow
def test_zerofl_saves():
    """Charges the uplink's values twice, as indices of a word each; nothing else."""
    model, found = network("resnet18", 10, CIFAR), {}
    initial = silent.distinct(model)
    for sp in (0.9, 0.95):
        for ratio in (0.0, 0.1, 0.2):
            method = zerofl(
                model,
                STILL,
                density=1 - sp,
                mask_ratio=ratio,
                uplink="weights",
                sparse_inputs=False,  # the silent network has none
                prunable=("layer*/conv*/kernel",),
            )
            simulated = silent.rounds(model, method, 1, initial=initial, clients=1)
            dense = simulated.view(paper_counts.values_only_bits, {"down": ("params",)})
            packets = {"up": ("weights", "dense")}
            bits = simulated.view(paper_counts.values_only_bits, packets, words=2)
            found[f"File sizes, sp = {sp}, r = {ratio}: savings"] = dense / bits
    for sp, d in ((0.9, 0.1), (0.95, 0.05)):  # FLASH quotes the last of each
        quoted = found[f"File sizes, sp = {sp}, r = 0.2: savings"]
        found[f"Table 4, ZeroFL, d = {d}: savings"] = quoted
    settle("test_zerofl_saves", found)
