"""FedSparsify, Figures 2a and 4, IID: Fashion-MNIST, 10 clients, T = 200.

The test accuracy of round 200. `average` is the other merge of Figure 4.
"""

from benchmarks.tables import Row, Table, _fedsparsify
from benchmarks.tables.fedsparsify_fashion_mnist import AVERAGED

_CONFIG = "configs/fedsparsify_fashion_mnist.py"
_ROWS = _fedsparsify.rows(_CONFIG, "iid")
_ROWS["local.1_average"] = Row(f"{_CONFIG}:local,iid", overrides=AVERAGED)

TABLE = Table(rows=_ROWS, seeds=1)
