"""FedSparsify, Table 2 and Figure 3: Fashion-MNIST, two classes a client, T = 200.

The test accuracy of round 200. The paper prints one seed and no deviation; it has the
baselines in figures only.
"""

from benchmarks.tables import Row, Table, runs

_CONFIG = "configs/fedsparsify_fashion_mnist.py"
_PRINTED = {".8": "74.0", ".85": "73.5", ".9": "74.9", ".95": "73.5", ".99": "68.7"}


def _global(sparsity: str) -> Row:
    overrides = {"algorithm.sparsity": float(sparsity)}
    return Row(f"{_CONFIG}:global", _PRINTED[sparsity], overrides)


def _other(method: str, sparsity: float) -> Row:
    stage = "first_stage" if method in ("snip", "grasp") else "algorithm"
    return Row(f"{_CONFIG}:{method}", "", {f"{stage}.sparsity": sparsity})


TABLE = Table(
    rows={
        "fedavg": Row(f"{_CONFIG}:fedavg", "74.89"),
        **{f"global{s}": _global(s) for s in _PRINTED},
        **{
            method + sparsity: _other(method, float(sparsity))
            for method in ("local", "random", "snip", "grasp")
            for sparsity in (".9", ".99")
        },
    },
    order=(
        *runs("fedavg global.9 global.99 global.95 global.8 global.85", 0),
        *runs("local.9 local.99 random.9 random.99", 0),
        *runs("snip.9 snip.99 grasp.9 grasp.99", 0),
        *runs("fedavg global.9 global.99 global.95 global.8 global.85", 1),
        *runs("fedavg global.9 global.99 global.95 global.8 global.85", 2),
    ),
)
