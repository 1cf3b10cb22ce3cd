"""SpaFL, the optimizer of HeteroFL, which it does not state: six tries, 100 rounds.

At the paper's rate and otherwise the set-up of Table 2. The best mean of the last three
evaluations on validation samples, a tenth of each client's, decides the optimizer of
`heterofl` and `fjord` in SpaFL's configurations.
"""

from pathlib import Path

import numpy as np

from benchmarks.tables import Row, Table
from sparsefl_jax import report

SHOWN = "validation"
_REGULARISED = {  # HeteroFL's own paper decays and clips
    "": {"optimizer.weight_decay": 0.0, "optimizer.clip": 0.0},
    "_decay": {"optimizer.weight_decay": 5e-4, "optimizer.clip": 0.0},
    "_decay_clip": {"optimizer.weight_decay": 5e-4, "optimizer.clip": 1.0},
}
_TRIES = {"num_rounds": 100, "eval_every": 10, "val_fraction": 0.1}


def validation(path: Path) -> dict[str, float]:
    """Returns the mean accuracy of the last three evaluations on validation data."""
    records = report.read_records(path / "metrics.jsonl")
    found = [r["val_accuracy"] for r in records if r["phase"] == "eval"]
    return {SHOWN: float(np.mean(found[-3:]))}


TABLE = Table(
    rows={
        name + suffix: Row(
            "configs/spafl_fashion_mnist.py:heterofl",
            overrides={"optimizer.momentum": momentum} | options | _TRIES,
        )
        for name, momentum in {"sgd": 0.0, "momentum": 0.9}.items()
        for suffix, options in _REGULARISED.items()
    },
    seeds=1,
    columns=(SHOWN,),
    extra=validation,
)
