"""FedSparsify, Table 1 and Figures 2b, 2d: CIFAR-10, 10 clients, T = 200.

The test accuracy of round 200, with five classes a client and IID. The paper prints one
seed of FedAvg and Global, non-IID; the rest is in figures only.
"""

from benchmarks.tables import Table, _fedsparsify

_CONFIG = "configs/fedsparsify_cifar10.py"
_NEEDS = "a GPU (28 PFLOP)"
_PRINTED = {
    "fedavg": "75",
    "global.2": "75.2",
    "global.15": "75.5",
    "global.1": "74.9",
    "global.05": "75.1",
    "global.01": "70",
}
_IID = _fedsparsify.rows(_CONFIG, "iid", needs=_NEEDS)
_ROWS = _fedsparsify.rows(_CONFIG, printed=_PRINTED, needs=_NEEDS)
_ROWS |= {f"iid_{name}": row for name, row in _IID.items()}

TABLE = Table(rows=_ROWS, seeds=1)
