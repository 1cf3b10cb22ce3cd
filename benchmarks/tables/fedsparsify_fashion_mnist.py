"""FedSparsify, Table 2 and Figure 3: Fashion-MNIST, two classes a client, T = 200.

The test accuracy of round 200. The paper prints one seed and no deviation; it has the
baselines in figures only.
"""

from benchmarks.tables import Row, Table

_CONFIG = "configs/fedsparsify_fashion_mnist.py"
_PRINTED = {".2": "74.0", ".15": "73.5", ".1": "74.9", ".05": "73.5", ".01": "68.7"}
_OTHERS = ("local", "random", "snip", "grasp", "prunefl")


def _row(method: str, density: str, printed: str = "") -> Row:
    return Row(f"{_CONFIG}:{method}", printed, {"density": float(density)})


TABLE = Table(
    rows={
        "fedavg": Row(f"{_CONFIG}:fedavg", "74.89"),
        **{f"global{d}": _row("global", d, printed) for d, printed in _PRINTED.items()},
        **{m + d: _row(m, d) for m in _OTHERS for d in (".1", ".01")},
    },
)
