"""FLASH, Tables 3 and 5: MNIST, LDA 0.1, 10 of 100 clients a round, T = 400.

The rows are of the released code's settings (`release`).
"""

from benchmarks.tables import Row, Table

_CONFIG = "configs/flash_mnist.py"
_THIN = {"density": 0.05}

TABLE = Table(
    rows={
        "fedavg": Row(f"{_CONFIG}:fedavg,release", "98.45 ± 0.17"),
        "nst": Row(f"{_CONFIG}:nst,release", "96.19 ± 0.22"),
        "pdst": Row(f"{_CONFIG}:pdst,release", "94.41 ± 1.23"),
        "spdst": Row(f"{_CONFIG}:spdst,release", "97.22 ± 0.43"),
        "jmwst": Row(f"{_CONFIG}:jmwst,release", "96.53 ± 0.19"),
        "nst_d05": Row(f"{_CONFIG}:nst,release", "91.66 ± 1.74", _THIN),
        "pdst_d05": Row(f"{_CONFIG}:pdst,release", "91.06 ± 1.10", _THIN),
        "spdst_d05": Row(f"{_CONFIG}:spdst,release", "95.70 ± 0.37", _THIN),
        "jmwst_d05": Row(f"{_CONFIG}:jmwst,release", "95.83 ± 0.84", _THIN),
        "hetero_spdst": Row(f"{_CONFIG}:hetero_spdst,release", "97.63 ± 0.22"),
    },
)
