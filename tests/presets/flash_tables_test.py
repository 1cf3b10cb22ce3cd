"""Each row of FLASH's tables is the method, density and partition that it names."""

import importlib
import re

import pytest

from benchmarks import table as tables
from sparsefl_jax.runs.config.defaults import densities, freeze

FILES = sorted(
    path.stem for path in (tables.ROOT / "benchmarks/tables").glob("flash_*.py")
)
FILES.remove("flash_pathological")  # Table 9, of FedDST's settings
TABLES = {f: importlib.import_module(f"benchmarks.tables.{f}").TABLE for f in FILES}
# Tables 3 and 5: of each alpha dense, 5 methods at 2 or 3 densities, 3 of hetero-FLASH.
COUNTS = {"flash_mnist": 3 * (1 + 5 * 2 + 3), "flash_femnist": 1 + 5 * 2 + 3}
COLOURS = ("flash_cifar10", "flash_cifar100", "flash_tinyimagenet")
COUNTS |= dict.fromkeys(COLOURS, 3 * (1 + 5 * 3 + 3))
DATA = {  # data set, rounds, clients, cohort; ablations have those of their table
    "flash_mnist": ("mnist", 400, 100, 10),
    "flash_cifar10": ("cifar10", 600, 100, 10),
    "flash_cifar100": ("cifar100", 800, 100, 10),
    "flash_tinyimagenet": ("hf:zh-plus/tiny-imagenet", 600, 100, 10),
    "flash_femnist": ("femnist", 1000, 3400, 34),
    "flash_sst2": ("sst2", 50, 100, 10),
}
METHOD = re.compile(r"(hetero_spdst|hetero_jmwst|fedavg|fedspa|nst|pdst|spdst|jmwst)")


@pytest.mark.parametrize("file", COUNTS)
def test_tables_3_and_5_are_whole(file):
    assert len(TABLES[file].rows) == COUNTS[file]
    assert TABLES[file].seeds == 3


@pytest.mark.parametrize("file", TABLES)
def test_a_row_runs_what_it_names(file):
    assert {name.replace("_ablations", "") for name in TABLES} == set(DATA)
    data = DATA[file.replace("_ablations", "")]
    for name, row in TABLES[file].rows.items():
        if name.startswith("zerofl"):
            continue
        config = tables.row_config(TABLES[file], name, 0)
        method = METHOD.match(name)[1]
        assert config.algorithm.name == method
        told = (config.num_rounds, config.num_clients, config.cohort_size)
        assert (config.dataset, *told) == data
        assert bool(row.needs) == (not file.endswith("mnist") or "femnist" in file)
        assert bool(config.first_stage) == method.endswith(("spdst", "jmwst"))

        alpha = re.search(r"_a(\d+)", name)
        usual = {"flash_femnist": None, "flash_sst2": 1.0}.get(file, 0.1)
        alpha = float(alpha[1]) if alpha else usual
        assert config.partition.get("alpha") == alpha
        if r_int := re.match(r"(?:hetero_)?jmwst(\d*)", name):
            assert freeze(config).algorithm["r_int"] == int(r_int[1] or 1)
        if method == "fedavg":
            continue
        density = 0.1
        if "hetero" in name or "n_of_m" in name or file == "flash_sst2":
            density = 0.2
        elif name.endswith("_d05") or "no_stage1" in name or method == "fedspa":
            density = 0.05
        elif name.endswith("_d01"):
            density = 0.01
        assert config.density == density
        assert {*densities(freeze(config)).values()} == {density}


def test_the_release_decays_over_1000_rounds_and_sets_the_rate_after_the_round():
    config = importlib.import_module("configs.flash_cifar10").get_config("pdst,release")
    assert (config.lr_horizon, config.lr_delay) == (1000, 1)
