"""SpaFL, Tables 1 to 3: Fashion-MNIST, Dir(0.2), 10 of 100 clients, T = 500.

Mean over clients on their own test samples, best round; the paper has at least ten
seeds. The Gbit of SpaFL's rows are the paper's own count, `thresholds_alone`.
"""

from pathlib import Path

from benchmarks.tables import Row, Table
from sparsefl_jax import report

_CONFIG = "configs/spafl_fashion_mnist.py"
_AS_PRINTED = {"algorithm.charge_delta": False}
SENT = {"algorithm.initial": "sent"}  # all start from one network, as SpaFL's clients
_DRAWN = {"algorithm.initial": "seed"}  # a client draws its weights, which is free
# A rate at which no threshold reaches the mean of a filter; 0 is no rate.
UNTRAINED = {"optimizer.learning_rate": 1e-7, "num_rounds": 1, "epochs": 1}
_FJORD = {  # FjORD's own code
    "optimizer.momentum": 0.0,
    "optimizer.clip": 0.0,
    "optimizer.weight_decay": 1e-4,
    "algorithm.weighting": "examples",
}


def thresholds_alone(path: Path) -> dict[str, float | str]:
    """Returns the Gbit of the thresholds both ways, which are all that SpaFL counts.

    The change of the thresholds and the initial weights, which clients need too, are
    left out: nothing remains if clients train alone. {} for methods without thresholds.
    """
    records = report.read_records(path / "metrics.jsonl")
    rounds = [record for record in records if record["phase"] == "train"]
    if not any(sum(record["entries_up"].values()) for record in rounds):
        return {"gbit": 0.0, "counted": "initial weights left out"}
    both = [r[f"entries_{way}"] for r in rounds for way in ("down", "up")]
    entries = sum(each.get("thresholds", 0) for each in both)
    counted = {"gbit": 32e-9 * entries, "counted": "thresholds alone"}
    return counted if entries else {}


TABLE = Table(
    rows={
        "spafl": Row(f"{_CONFIG}:release", "89.21 ± 0.25", _AS_PRINTED),
        "without13": Row(f"{_CONFIG}:without13,release", "88.20 ± 1.10"),
        "local": Row(f"{_CONFIG}:local,release", "84.31 ± 0.20", SENT),
        "fedavg": Row(f"{_CONFIG}:fedavg", "88.73 ± 0.21"),
        "heterofl": Row(f"{_CONFIG}:heterofl", "85.97 ± 0.20"),
        "fjord": Row(f"{_CONFIG}:fjord", "89.08 ± 0.17"),
        "fedpm": Row(f"{_CONFIG}:fedpm", "63.27 ± 1.65"),
        "thresholds_only": Row(f"{_CONFIG}:thresholds_only,release", "65.52 ± 5.3"),
        "untrained": Row(
            f"{_CONFIG}:thresholds_only,release", "10.22 ± 0.25", UNTRAINED
        ),
        "fedpm_initial": Row(f"{_CONFIG}:fedpm,initial", "63.27 ± 1.65", _DRAWN),
        "fedpm_raw": Row(f"{_CONFIG}:fedpm", "63.27 ± 1.65", {"input_scale": 1.0}),
        "spafl_paper": Row(f"{_CONFIG}:paper", "89.21 ± 0.25", _AS_PRINTED),
        "local_alpha": Row(
            f"{_CONFIG}:local,release",
            "84.31 ± 0.20",
            SENT | {"algorithm.alpha": 0.004},
        ),
        "fjord_own": Row(f"{_CONFIG}:fjord", "89.08 ± 0.17", _FJORD),
    },
    seeds=10,
    best=True,
    extra=thresholds_alone,
)
