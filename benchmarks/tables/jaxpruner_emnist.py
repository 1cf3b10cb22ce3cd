"""JaxPruner (2023), federated EMNIST: S = .8, 50 of 3400 clients, T = 1000.

The row "Fed. MNIST" of its README, one figure for each method. `fedavg` is its
no_prune, and `static` its static_sparse. Its saliency, set and rigl have no
counterpart here; for magnitude_ste see the page.
"""

from benchmarks.tables import Row, Table

_CONFIG = "configs/jaxpruner_emnist.py"
_PRINTED = {
    "fedavg": "86.21",
    "magnitude": "85.74",
    "global_magnitude": "86.01",
    "random": "83.53",
    "static": "83.33",
}

TABLE = Table(
    rows={
        name: Row(f"{_CONFIG}:{name}", paper, needs="FEMNIST")
        for name, paper in _PRINTED.items()
    },
)
