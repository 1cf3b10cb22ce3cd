"""What the tables of SpaFL share: settings of rows, seeds, and the paper's Gbit."""

from pathlib import Path

from benchmarks.tables import Row, Table
from sparsefl_jax import report

SENT = {"algorithm.initial": "sent"}  # all start from one network, as SpaFL's clients
# A rate at which no threshold reaches the mean of a filter; 0 is no rate.
UNTRAINED = {"optimizer.learning_rate": 1e-7, "num_rounds": 1, "epochs": 1}


def table(rows: dict[str, Row]) -> Table:
    """Returns the table of some rows: ten seeds, of which the best rounds count."""
    return Table(rows, seeds=10, best=True, extra=thresholds_alone)


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
