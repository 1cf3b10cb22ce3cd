"""FLASH, Table 10: BERT-base on SST-2, alpha = 1, d = 0.2, T = 50."""

from benchmarks.tables import Row, Table

_CONFIG, _NEEDS = "configs/flash_sst2.py", "BERT-base's weights, a GPU"

TABLE = Table(
    rows={
        "fedavg": Row(f"{_CONFIG}:fedavg", "92.25", {}, _NEEDS),
        "nst": Row(f"{_CONFIG}:nst", "77.59", {}, _NEEDS),
        "pdst": Row(f"{_CONFIG}:pdst", "78.96", {}, _NEEDS),
        "spdst": Row(f"{_CONFIG}:spdst", "83.07", {}, _NEEDS),
        "jmwst": Row(f"{_CONFIG}:jmwst", "80.5", {}, _NEEDS),
        "jmwst5": Row(f"{_CONFIG}:jmwst", "81.78", {"algorithm.r_int": 5}, _NEEDS),
    },
)
