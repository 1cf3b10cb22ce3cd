"""SpaFL, Tables 1 to 3: CIFAR-10, Conv4, Dir(0.1), 10 of 100 clients, T = 500.

Mean over clients on their own test samples, best round; the paper has at least ten
seeds. `spafl` has the paper's identity estimator, `spafl_release` the one of the
official CIFAR-10 code. The Gbit of SpaFL's rows are those of the thresholds.
"""

from benchmarks.tables import Row
from benchmarks.tables._spafl import SENT, UNTRAINED, table

_CONFIG = "configs/spafl_cifar10.py"
_NEEDS = "a GPU, or 12 to 30 hours"


def _row(options: str, printed: str, **facts) -> Row:
    return Row(f"{_CONFIG}{options}", printed, needs=_NEEDS, **facts)


_ROWS = {
    "spafl": _row("", "69.75 ± 2.81"),
    "without13": _row(":without13", "68.63 ± 1.76"),
    "spafl_release": _row(":release", "69.75 ± 2.81"),
    "without13_release": _row(":without13,release", "68.63 ± 1.76"),
    "local": _row(":local", "57.06 ± 1.30", overrides=SENT),
    "fedavg": _row(":fedavg", "61.33 ± 0.15"),
    "heterofl": _row(":heterofl", "66.83 ± 1.15"),
    "fjord": _row(":fjord", "66.38 ± 2.01"),
    "fedpm": _row(":fedpm", "52.05 ± 0.06"),
    "thresholds_only": _row(":thresholds_only", "60.94 ± 3.4"),
    "untrained": Row(f"{_CONFIG}:thresholds_only", "10.38 ± 0.42", UNTRAINED),
}

TABLE = table(_ROWS)
