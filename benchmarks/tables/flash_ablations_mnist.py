"""FLASH, Tables 6, 11 and 12 and Figures 7, 9 and 10, on MNIST instead of CIFAR-10.

The paper prints no figure for these rows. `flash_mnist` has the rows to compare with.
"""

from benchmarks.tables import _flash

TABLE = _flash.ablations("configs/flash_mnist.py", {})
