"""Complement Sparsification, Figures 4, 5, 7, 9, Tables 3, 5: IC, 10 users, T = 200.

MNIST by writer replaces FEMNIST, whose figures are printed. Accuracy is that of the
pruned model on all held-out samples, best round. `cs0.5_random` deals the images to 200
clients.
"""

from benchmarks.tables import Row, _complement

_CONFIG = "configs/complement_mnist.py"
_RANDOM = {
    "writers": None,
    "num_clients": 200,
    "partition.name": "quantity",
    "partition.alpha": 1e6,  # equal sizes
}
_ROWS = _complement.rows(_CONFIG, _complement.IC) | {
    "cs0.5_random": Row(f"{_CONFIG}:cs", "", {"density": 0.5} | _RANDOM),
}

TABLE = _complement.table(_ROWS, "ic", 62, (28, 28, 1))
