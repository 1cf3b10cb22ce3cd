"""FedSparsify, Figures 5a, 5c: Fashion-MNIST, 10 of 100 clients, T = 200.

The test accuracy of round 200, IID and with two classes a client.
"""

from benchmarks.tables import Table, _fedsparsify

_CONFIG = "configs/fedsparsify_fashion_mnist.py"
_ROWS = {
    f"{split}_{name}": row
    for split in ("noniid", "iid")
    for name, row in _fedsparsify.rows(_CONFIG, "clients100", split).items()
}

TABLE = Table(rows=_ROWS, seeds=1)
