"""FLASH's tables are whole, and its release has a schedule of its own."""

import importlib

import pytest

from benchmarks.pages import declared

# Tables 3 and 5: of each alpha dense, 5 methods at 2 or 3 densities, 3 of hetero-FLASH;
# on MNIST also 4 methods at 2 densities with the paper's preset, and one softmax.
COUNTS = {
    "flash_mnist": 3 * (1 + 5 * 2 + 3) + 4 * 2 + 1,
    "flash_femnist": 1 + 5 * 2 + 3,
}
COLOURS = ("flash_cifar10", "flash_cifar100", "flash_tinyimagenet")
COUNTS |= dict.fromkeys(COLOURS, 3 * (1 + 5 * 3 + 3))


@pytest.mark.parametrize("file", COUNTS)
def test_tables_3_and_5_are_whole(file):
    assert len(declared(file).rows) == COUNTS[file]
    assert declared(file).seeds == 3


def test_the_release_decays_over_1000_rounds_and_sets_the_rate_after_the_round():
    config = importlib.import_module("configs.flash_cifar10").get_config("pdst,release")
    assert (config.lr_horizon, config.lr_delay) == (1000, 1)
