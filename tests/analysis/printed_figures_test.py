"""The printed figures that need no training: networks, arithmetic, and the list of all.

Where every round costs the same, the tests of the papers, `printed_*_test.py`, simulate
two; they simulate a schedule to its end.
"""

import jax
import pytest

from tests.analysis import (
    printed_complement_test,
    printed_savings_test,
    printed_spafl_test,
)
from tests.reference import printed_figures as printed
from tests.reference import printed_spafl
from tests.reference.printed_figures import settle
from tests.reference.printed_spafl import CIFAR, CONVOLUTIONS, MNIST
from tests.silent import macs, network, shapes, size

PAPERS = printed_spafl_test, printed_complement_test, printed_savings_test


def test_every_figure_has_a_test_and_every_test_a_figure():
    rows = printed.table()
    assert len({row[:2] for row in rows}) == len(rows) == 136
    assert {row.kind for row in rows} == {*printed.CLASSES}
    assert {row.test for row in rows} == {*_ids()}
    assert {*printed.CUT, *printed.NEAR} <= {row.place for row in rows}


def _ids():
    """Returns the ids of the tests of all papers."""
    functions = globals().copy()
    for module in PAPERS:
        functions |= vars(module)
    for name, function in functions.items():
        if name.startswith("test_") and not name.startswith("test_every"):
            marks = getattr(function, "pytestmark", ())
            (ids,) = [m.args[1] for m in marks if m.name == "parametrize"] or [[None]]
            values = [getattr(v, "values", v) for v in ids]
            for v in values:
                parts = v if isinstance(v, tuple) else (v,)
                yield name if v is None else f"{name}[{'-'.join(map(str, parts))}]"


@pytest.mark.slow
def test_networks():
    lenet, conv4, resnet, small = (
        printed_spafl.experiment(name).model
        for name in (*printed_spafl_test.SPAFL, "released")
    )
    mnistnet = network("mnistnet", 10, MNIST)
    inputs, _ = shapes(mnistnet).params["fc1"]["kernel"].shape
    # As the page says: A.1's 807,366 are these and PyTorch's six counters of batches.
    statistics = sum(v.size for v in jax.tree.leaves(shapes(conv4).stats))
    assert (size(conv4), statistics) == (806_080, 807_366 - 806_080 - 6)
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
    """Repeats what the paper must have added up; nothing is simulated."""
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
            "Abstract: communication below ZeroFL's": 19.5 / 1.9,
        },
    )
