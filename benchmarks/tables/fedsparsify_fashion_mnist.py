"""FedSparsify, Table 2 and Figure 2a: Fashion-MNIST, two classes a client, T = 200.

The test accuracy of round 200. The paper prints one seed and no deviation; it has the
baselines in figures only. `first` are the paper's SNIP and GraSP, which score a
client's first samples; `average` is the other merge of Figure 4.
"""

from benchmarks.tables import Row, Table, _fedsparsify

_CONFIG = "configs/fedsparsify_fashion_mnist.py"
_PRINTED = {
    "fedavg": "74.89",
    "global.2": "74.0",
    "global.15": "73.5",
    "global.1": "74.9",
    "global.05": "73.5",
    "global.01": "68.7",
}
_ROWS = _fedsparsify.rows(_CONFIG, printed=_PRINTED) | {
    f"{method}{d}_first": Row(
        f"{_CONFIG}:{method}",
        overrides={"density": float(d), "first_stage.first_samples": True},
    )
    for method in ("snip", "grasp")
    for d in (".1", ".01")
}
AVERAGED = {"density": 0.1, "algorithm.merge": "average"}
_ROWS["local.1_average"] = Row(f"{_CONFIG}:local", overrides=AVERAGED)

TABLE = Table(rows=_ROWS)
