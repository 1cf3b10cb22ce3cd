"""FedSparsify, Figure 3: rounds between purges, Global at S = .95, Fashion-MNIST.

10 clients of two classes each, T = 200. The test accuracy of round 200, and by how much
accuracy fell at most from one round to the next.
"""

from pathlib import Path

from benchmarks.tables import Row, Table
from sparsefl_jax import report

_CONFIG = "configs/fedsparsify_fashion_mnist.py:global"
_ROUNDS = (1, 2, 5, 10, 15, 20)
SHOWN = "largest fall"


def largest_fall(path: Path) -> dict[str, float]:
    """Returns by how much accuracy fell at most from one evaluation to the next."""
    records = report.read_records(path / "metrics.jsonl")
    accuracies = [r["accuracy"] for r in records if r["phase"] == "eval"]
    pairs = zip(accuracies, accuracies[1:], strict=False)
    return {SHOWN: max(before - after for before, after in pairs)}


TABLE = Table(
    rows={
        f"every{f}": Row(_CONFIG, overrides={"density": 0.05, "algorithm.frequency": f})
        for f in _ROUNDS
    },
    seeds=1,
    columns=(SHOWN,),
    extra=largest_fall,
)
