"""FLASH, Table 3: CIFAR-10, ResNet-18, LDA 0.1, 10 of 100 clients a round, T = 600.

For an accelerator: on two CPU cores a round takes about a minute.
"""

from benchmarks.tables import Row, Table

_CONFIG = "configs/flash_cifar10.py"
_THIN = {"density": 0.01}

TABLE = Table(
    rows={
        "fedavg": Row(f"{_CONFIG}:fedavg,release", "77.64 ± 0.49"),
        "pdst": Row(f"{_CONFIG}:pdst,release", "74.82 ± 0.72"),
        "spdst": Row(f"{_CONFIG}:spdst,release", "76.74 ± 1.46"),
        "pdst_d01": Row(f"{_CONFIG}:pdst,release", "59.30 ± 0.36", _THIN),
        "spdst_d01": Row(f"{_CONFIG}:spdst,release", "70.61 ± 1.82", _THIN),
    },
)
