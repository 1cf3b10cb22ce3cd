"""SpaFL, Tables 1 to 3: Fashion-MNIST, Dir(0.2), 10 of 100 clients, T = 500.

Mean over clients on their own test samples, best round; the paper has at least ten
seeds. The Gbit of SpaFL's rows are those of the thresholds.
"""

from benchmarks.tables import Row
from benchmarks.tables._spafl import SENT, UNTRAINED, table

_CONFIG = "configs/spafl_fashion_mnist.py"
_AS_PRINTED = {"algorithm.charge_delta": False}
_DRAWN = {"algorithm.initial": "seed"}  # a client draws its weights, which is free
_ALPHA = SENT | {"algorithm.alpha": 0.004}
_FJORD = {  # FjORD's own code
    "optimizer.weight_decay": 1e-4,
    "algorithm.weighting": "examples",
}
_ROWS = {
    "spafl": Row(f"{_CONFIG}:release", "89.21 ± 0.25", _AS_PRINTED),
    "without13": Row(f"{_CONFIG}:without13,release", "88.20 ± 1.10"),
    "local": Row(f"{_CONFIG}:local,release", "84.31 ± 0.20", SENT),
    "fedavg": Row(f"{_CONFIG}:fedavg", "88.73 ± 0.21"),
    "heterofl": Row(f"{_CONFIG}:heterofl", "85.97 ± 0.20"),
    "fjord": Row(f"{_CONFIG}:fjord", "89.08 ± 0.17"),
    "fedpm": Row(f"{_CONFIG}:fedpm", "63.27 ± 1.65"),
    "thresholds_only": Row(f"{_CONFIG}:thresholds_only,release", "65.52 ± 5.3"),
    "untrained": Row(f"{_CONFIG}:thresholds_only,release", "10.22 ± 0.25", UNTRAINED),
    "fedpm_initial": Row(f"{_CONFIG}:fedpm,initial", "63.27 ± 1.65", _DRAWN),
    "fedpm_raw": Row(f"{_CONFIG}:fedpm", "63.27 ± 1.65", {"input_scale": 1.0}),
    "spafl_paper": Row(f"{_CONFIG}:paper", "89.21 ± 0.25", _AS_PRINTED),
    "local_alpha": Row(f"{_CONFIG}:local,release", "84.31 ± 0.20", _ALPHA),
    "fjord_own": Row(f"{_CONFIG}:fjord", "89.08 ± 0.17", _FJORD),
}

TABLE = table(_ROWS)
