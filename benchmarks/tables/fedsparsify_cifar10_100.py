"""FedSparsify, Figures 5b, 5d: CIFAR-10, 10 of 100 clients, T = 200.

The test accuracy of round 200, IID and with five classes a client.
"""

from benchmarks.tables import Table, _fedsparsify

_CONFIG = "configs/fedsparsify_cifar10.py"
_ROWS = {
    f"{split}_{name}": row
    for split in ("noniid", "iid")
    for name, row in _fedsparsify.rows(_CONFIG, "clients100", split).items()
}

TABLE = Table(rows=_ROWS, seeds=1)
