"""SpaFL, Tables 1 to 3: CIFAR-100, ResNet-18, Dir(0.1), 10 of 100 clients, T = 1500.

Mean over clients on their own test samples, best round; the paper has at least ten
seeds. The released code's network is half as wide. The Gbit of SpaFL's rows are those
of the thresholds.
"""

from benchmarks.tables import Row
from benchmarks.tables._spafl import SENT, UNTRAINED, table

_CONFIG = "configs/spafl_cifar100.py"
# FedAvg's multiply-adds times six; HeteroFL and FjORD take a quarter.
_WIDE, _HALF = "a GPU (175 PFLOP)", "a GPU (44 PFLOP)"


def _row(options: str, printed: str, needs: str = _WIDE) -> Row:
    return Row(f"{_CONFIG}:{options}", printed, needs=needs)


_ROWS = {
    "spafl": Row(_CONFIG, "40.80 ± 0.54", needs=_WIDE),
    "without13": _row("without13", "38.96 ± 0.80"),
    "spafl_release": _row("release", "40.80 ± 0.54", _HALF),
    "without13_release": _row("without13,release", "38.96 ± 0.80", _HALF),
    "local": Row(f"{_CONFIG}:local", "33.77 ± 1.87", SENT, _WIDE),
    "fedavg": _row("fedavg", "35.51 ± 0.10"),
    "heterofl": _row("heterofl", "37.82 ± 0.15", _HALF),
    "fjord": _row("fjord", "39.13 ± 0.22", _HALF),
    "fedpm": _row("fedpm", "28.56 ± 0.15"),
    "thresholds_only": _row("thresholds_only", "24.80 ± 1.1"),
    "untrained": Row(f"{_CONFIG}:thresholds_only", "1.43 ± 0.53", UNTRAINED),
}

TABLE = table(_ROWS)
