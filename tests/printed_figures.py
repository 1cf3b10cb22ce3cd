"""Every figure that papers print and that needs no training, typed in.

`docs/printed_figures.md` has a row for each, with what comes out here. A figure in
parentheses is not printed: it follows by hand from what is, or lies behind it.
"""

import math
import re
from pathlib import Path
from typing import NamedTuple

import pytest

DOCUMENT = Path(__file__).parent.parent / "docs" / "printed_figures.md"
CLASSES = ("simulated", "network", "arithmetic", "differs")


class Figure(NamedTuple):
    """A row of the table without our own figure."""

    paper: str
    place: str
    printed: str
    kind: str  # a name in CLASSES
    test: str  # the id of the test that settles it
    how: str | float = "rounded"  # its digits are; 'cut' off; or how near, relative


def _all(paper, test, kind, printed, how="rounded") -> list[Figure]:
    return [Figure(paper, p, v, kind, test, how) for p, v in printed.items()]


# SpaFL (NeurIPS 2024): Table 2 and Appendix A.1; FLOPs as in Eq. (33), of which a
# multiply-add is one.
SPAFL = [
    *_all("SpaFL", "test_networks", "network", {
        "A.1, LeNet-5-Caffe: parameters": "430500",
        "LeNet-5-Caffe: multiply-adds of a sample": "(2293000)",
        "Conv4: weights": "(804800)",
        "Conv4: multiply-adds of a sample": "(82489600)",
        "A.1, ResNet-18: parameters": "11159232",
        "ResNet-18: multiply-adds of a sample": "(555417600)",
        "ResNet-18 of the released code: weights": "(2790240)",
        "ResNet-18 of the released code: multiply-adds": "(139296768)",
    }),
    *_all("SpaFL", "test_thresholds_travel[lenet5_caffe]", "simulated", {
        "A.1, LeNet-5-Caffe: thresholds": "580",
        "Table 2, FMNIST, SpaFL: Gbit": "0.1856",
    }),
    *_all("SpaFL", "test_thresholds_travel[conv4]", "simulated", {
        "Conv4: thresholds that it has": "(650)",
        "Table 2, CIFAR-10, SpaFL: Gbit of 650 thresholds": "(0.208)",
    }),
    *_all("SpaFL", "test_thresholds_travel[resnet18]", "simulated", {
        "A.1, ResNet-18: thresholds": "4800",
        "Table 2, CIFAR-100, SpaFL: Gbit": "4.6080",
    }),
    *_all("SpaFL", "test_thresholds_travel[released]", "simulated", {
        "ResNet-18 of the released code: thresholds": "(2400)",
        "ResNet-18 of the released code, SpaFL: Gbit": "(2.304)",
    }),
    *_all("SpaFL", "test_fedavg_of_spafl[lenet5_caffe]", "differs", {
        "Table 2, FMNIST, FedAvg: Gbit": "133.8",
    }),
    *_all("SpaFL", "test_fedavg_of_spafl[lenet5_caffe]", "simulated", {
        "Table 2, FMNIST, FedAvg: 1e11 FLOPs": "10.345",
    }, how=0.003),
    *_all("SpaFL", "test_fedavg_of_spafl[conv4]", "simulated", {
        "Table 2, CIFAR-10, FedAvg: Gbit": "258.36",
    }),
    *_all("SpaFL", "test_fedavg_of_spafl[resnet18]", "simulated", {
        "Table 2, CIFAR-100, FedAvg: Gbit": "10712",
    }, how="cut"),
    *_all("SpaFL", "test_fedavg_of_spafl[resnet18]", "simulated", {
        "Table 2, CIFAR-100, FedAvg: 1e14 FLOPs": "8.7289",
    }, how=0.003),
    *_all("SpaFL", "test_heterofl_of_spafl[lenet5_caffe]", "simulated", {
        "Table 2, FMNIST, HeteroFL: Gbit": "68.88",
    }),
    *_all("SpaFL", "test_heterofl_of_spafl[conv4]", "simulated", {
        "Table 2, CIFAR-10, HeteroFL: Gbit": "129.178",
    }),
    *_all("SpaFL", "test_heterofl_of_spafl[resnet18]", "simulated", {
        "Table 2, CIFAR-100, HeteroFL: Gbit": "5356.4",
    }),
    *_all("SpaFL", "test_headlines_of_spafl", "differs", {
        "Abstract: % of FedAvg's communication": "0.17",
        "Abstract: % of FedAvg's computation": "12.0",
        "Abstract: % of HeteroFL's communication": "0.35",
        "Abstract: % of HeteroFL's computation": "24",
    }),
    *_all("SpaFL", "test_arithmetic_on_print", "arithmetic", {
        "A.1, Conv4: parameters": "807366",
        "A.1, Conv4: thresholds": "1418",
        "Table 2, CIFAR-10, SpaFL: bits of 1418 thresholds": "(453760000)",
        "Table 2, CIFAR-10, FedPM: bits of a mask's entry": "(0.9937)",
        "Table 2, CIFAR-100, FedPM: bits of a mask's entry": "(0.8941)",
        "Table 2, CIFAR-10, FedAvg: FLOPs over those of Eq. (33)": "(4.00)",
    }),
    *_all("SpaFL", "test_arithmetic_on_print", "arithmetic", {
        "Table 2, CIFAR-10, SpaFL: Gbit": "0.4537",
    }, how="cut"),
]  # fmt: skip

# FedSparsify (2022): Tables 1 and 2, after 200 rounds of 10 clients, by sparsity:
# parameters that are not zero (with statistics) and millions exchanged.
FEDSPARSIFY_TABLES = {
    "fedsparsify_cnn": ("Table 1", {
        0.8: (322370, 2596), 0.85: (241874, 2356), 0.9: (161377, 2116),
        0.95: (80881, 1875), 0.99: (16484, 1683),
    }),
    "mlp": ("Table 2", {
        0.8: (23657, 190), 0.85: (17743, 173), 0.9: (11829, 155),
        0.95: (5915, 137), 0.99: (1183, 123),
    }),
}  # fmt: skip
FEDSPARSIFY = [
    *_all("FedSparsify", "test_networks", "network", {
        "Table 1: parameters": "1609930", "Table 2: parameters": "118282",
    }),
    *_all("FedSparsify", "test_fedavg_of_fedsparsify[fedsparsify_cnn]", "simulated", {
        "Table 1, S = 0: C.C.": "6441",
    }, how="cut"),
    *_all("FedSparsify", "test_fedavg_of_fedsparsify[mlp]", "simulated", {
        "Table 2, S = 0: C.C.": "473",
    }, how="cut"),
    *(figure
      for name, (table, rows) in FEDSPARSIFY_TABLES.items()
      for s, (alive, millions) in rows.items()
      for figure in _all(
          "FedSparsify", f"test_fedsparsify[{name}-{s}]", "simulated",
          {f"{table}, S = {s}: Params": str(alive),
           f"{table}, S = {s}: C.C.": str(millions)}, how="cut")),
]  # fmt: skip

# Complement Sparsification (AAAI 2023), Tables 2 to 5, by the server's sparsity p: of
# every layer and of the whole model what clients do not send, % of the FLOPs saved.
PRUNED = (0.5, 0.6, 0.7, 0.8)
CLIENTS = {
    "ic": {
        "conv1": (0.569, 0.528, 0.587, 0.788),
        "conv2": (0.842, 0.788, 0.800, 0.900),
        "conv3": (0.917, 0.837, 0.791, 0.868),
        "fc1": (0.920, 0.863, 0.853, 0.909),
        "fc2": (0.756, 0.722, 0.721, 0.698),
    },
    "sa": {"fc1": (0.933, 0.885, 0.841, 0.812), "fc2": (0.887, 0.851, 0.833, 0.810)},
}
FULL = {
    "ic": ("Table 3", ("0.904", "0.843", "0.828", "0.891")),
    "sa": ("Table 2", ("0.932", "0.884", "0.841", "0.812")),
}
SAVED = {
    "ic": ("Table 5", {
        "conv1": ("19.0", "24.3", "32.9", "46.3"),
        "conv2": ("28.1", "32.9", "40.0", "50.0"),
        "conv3": ("30.6", "34.6", "39.7", "48.9"),
        "fc1": ("30.7", "35.4", "41.7", "50.3"),
        "fc2": ("25.1", "30.6", "37.2", "43.1"),
        "full": ("29.1", "33.6", "39.6", "49.3"),
    }),
    "sa": ("Table 4", {
        "fc1": ("31.1", "36.1", "41.3", "47.0"),
        "fc2": ("29.1", "34.5", "40.5", "46.3"),
        "full": ("31.1", "36.1", "41.3", "47.0"),
    }),
}  # fmt: skip
VANILLA = {
    "ic": ("Table 5", {"conv1": "1168224", "conv2": "13381824", "conv3": "17916096",
                       "fc1": "614700", "fc2": "37386", "full": "33118230"}),
    "sa": ("Table 4", {"fc1": "147744", "fc2": "585", "full": "148329"}),
}  # fmt: skip


def saved_place(table, layer, p):
    return f"{table}, {layer}, p = {p}: % saved"


def full_place(table, p):
    return f"{table}, full, p = {p}: client sparsity"


def vanilla_place(table, layer):
    return f"{table}, {layer}: FLOPs of a sample"


COMPLEMENT = [
    *_all("Complement", "test_networks", "network", {
        "Section 4.2, SA: parameters": "24707", "Section 4.2, IC: parameters": "164506",
    }),
    *(Figure("Complement", vanilla_place(table, layer), printed,
             "differs" if printed in ("147744", "148329") else "simulated",
             f"test_vanilla_flops_of_complement[{name}]")
      for name, (table, layers) in VANILLA.items()
      for layer, printed in layers.items()),
    *(Figure("Complement", full_place(table, p), v, "simulated",
             f"test_complement[{name}-{p}]",
             "cut" if (name, p) in (("sa", 0.5), ("sa", 0.6)) else "rounded")
      for name, (table, printed) in FULL.items()
      for p, v in zip(PRUNED, printed, strict=True)),
    *(Figure("Complement", saved_place(table, layer, p), v, "simulated",
             f"test_complement[{name}-{p}]")
      for name, (table, layers) in SAVED.items()
      for layer, printed in layers.items()
      for p, v in zip(PRUNED, printed, strict=True)),
]  # fmt: skip

# FLASH (TMLR 2023): Tables 4 and 7, abstract.
FLASH = [
    *_all("FLASH", "test_networks", "network", {
        "ResNet-18, CIFAR-10: parameters": "(11173962)",
        "Table 7, FEMNIST: parameters": "(6603710)",
        "Table 7, MNIST: parameters": "(261840)",
        "Table 7, MNIST: inputs of FC": "5120",
    }),
    *_all("FLASH", "test_flash_saves[resnet18]", "simulated", {
        "Table 4, CIFAR-10, d = 0.05: savings": "19.5",
    }),
    *_all("FLASH", "test_flash_saves[resnet18]", "simulated", {
        "Table 4, CIFAR-10, d = 0.1: savings": "9.8",
    }, how="cut"),
    *_all("FLASH", "test_flash_saves[femnist_cnn]", "simulated", {
        "Table 4, FEMNIST, d = 0.05: savings": "14.6",
    }),
    *_all("FLASH", "test_stage_one_of_flash", "simulated", {
        "ResNet-18: bits of stage 1, 20 layers, 10 clients": "(6400)",
    }),
    *_all("FLASH", "test_zerofl_saves", "simulated", {
        "Table 4, ZeroFL, d = 0.1: savings": "1.6",
        "Table 4, ZeroFL, d = 0.05: savings": "1.9",
    }),
    *_all("FLASH", "test_arithmetic_on_print", "arithmetic", {
        "Abstract: communication below ZeroFL's": "10.26",
    }),
]  # fmt: skip

# ZeroFL (ICLR 2022): the sizes of compressed files beside the accuracies.
ZEROFL = [
    *_all("ZeroFL", "test_zerofl_saves", "simulated", {
        "File sizes, sp = 0.9, r = 0.0: savings": "4.3",
        "File sizes, sp = 0.9, r = 0.1: savings": "2.3",
        "File sizes, sp = 0.9, r = 0.2: savings": "1.6",
        "File sizes, sp = 0.95, r = 0.1: savings": "3.0",
        "File sizes, sp = 0.95, r = 0.2: savings": "1.9",
    }),
    *_all("ZeroFL", "test_zerofl_saves", "differs", {
        "File sizes, sp = 0.95, r = 0.0: savings": "7.4",
    }),
]  # fmt: skip

# SparsyFed (ICLR 2025).
SPARSYFED = [
    *_all("SparsyFed", "test_sparsyfed_saves", "simulated", {
        "ResNet-18, S = 0.95: weights that travel": "(558218)",
        "ResNet-18, S = 0.9: savings of values": "(9.848)",
        "ResNet-18, S = 0.95: savings of values": "(19.368)",
        "ResNet-18, S = 0.99: savings of values": "(85.47)",
    }),
    *_all("SparsyFed", "test_sparsyfed_saves", "differs", {
        "ResNet-18, S = 0.95: times less than dense": "19.29",
    }),
]  # fmt: skip

FIGURES = SPAFL + FEDSPARSIFY + COMPLEMENT + FLASH + ZEROFL + SPARSYFED


def table() -> list[list[str]]:
    """Returns the document's rows: paper, place, printed, ours, class, test."""
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    cells = [re.split(r"\s*\|\s*", line.strip("| ")) for line in lines if "|" in line]
    return [row for row in cells[2:] if len(row) == 6]


def some(names, *slow):
    """Returns parameters of a test, of which some are marked as slow."""
    marked = [pytest.param(*n, marks=pytest.mark.slow) for n in slow]
    return [*names, *marked]


def settle(test: str, found: dict[str, float]) -> None:
    """Fails where a figure of a test is not what is printed, or what the table says.

    Args:
      test: its id.
      found: what comes out, by place.
    """
    figures = {f.place: f for f in FIGURES if f.test == test}
    assert found.keys() == figures.keys()
    told = {(row[0], row[1]): row[3] for row in table()}
    for place, value in found.items():
        figure = figures[place]
        here = told[figure.paper, place]
        assert _reads(value, here, "rounded"), f"{place}: {value}, in the table {here}"
        agrees = _reads(value, figure.printed.strip("()"), figure.how)
        assert agrees != (figure.kind == "differs"), f"{place}: {value}, {figure}"


def _reads(value: float, text: str, how: str | float) -> bool:
    """Tells whether a value has these digits."""
    if isinstance(how, float):
        return math.isclose(value, float(text), rel_tol=how)
    unit = 10.0 ** -len(text.partition(".")[2])
    low, high = (0, 1) if how == "cut" else (-0.5, 0.5)
    error = 1e-9 * abs(value)
    return low * unit - error <= value - float(text) <= high * unit + error
