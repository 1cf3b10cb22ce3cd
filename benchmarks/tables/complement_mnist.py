"""Complement Sparsification, Tables 3 and 5, Figure 5: IC, 10 users a round, T = 200.

MNIST by writer replaces FEMNIST. Accuracy is that of the pruned model on all held-out
samples, best round. After its accuracy, the paper's figures are the density of what
clients send, and the share of FLOPs that this saves by the paper's count.
"""

import json
from pathlib import Path

import numpy as np

from benchmarks.tables import Row, Table
from sparsefl_jax import models, report
from sparsefl_jax.wire import paper_counts

_CONFIG = "configs/complement_mnist.py"
_PRINTED = {
    0.5: "72.5, .096, .291",
    0.4: "-, .157, .336",
    0.3: "-, .172, .396",
    0.2: "-, .109, .493",
}
_LAYERS = {"conv1": 32, "conv2": 64, "conv3": 64, "fc1": 100, "fc2": 62}  # outputs
SHOWN = ("client density", "FLOPs saved")


def emergent(path: Path) -> dict[str, float]:
    """Client density, mean over the rounds after the first, and what it saves."""
    rounds = [
        record.get("client", {})
        for record in report.read_records(path / "metrics.jsonl")
        if record["phase"] == "train" and record["round"] > 1
    ]
    if "client_density" not in rounds[0]:
        return {}
    algorithm = json.loads((path / "config.json").read_text())["algorithm"]

    def mean(key):
        return float(np.mean([record[key] for record in rounds]))

    macs = models.build("ic", 62, (28, 28, 1)).macs
    told, saved, flops = {}, [], []
    for name, outputs in _LAYERS.items():
        told[name] = mean(f"client_density/{name}/kernel")
        layer = macs[name]["kernel"], outputs
        flops.append(paper_counts.complement_flops(*layer))
        saved.append(
            paper_counts.complement_saving(*layer, algorithm["density"], told[name])
        )
    shown = mean("client_density"), float(np.average(saved, weights=flops))
    return told | dict(zip(SHOWN, shown, strict=True))


TABLE = Table(
    rows={
        "fedavg": Row(f"{_CONFIG}:fedavg", "76.3"),
        **{
            f"cs{1 - d:.1f}": Row(f"{_CONFIG}:cs", printed, {"density": d})
            for d, printed in _PRINTED.items()
        },
        "prunefl": Row(f"{_CONFIG}:prunefl", "55.5"),
        "pqsu": Row(f"{_CONFIG}:pqsu", "57.9"),
    },
    seeds=1,
    best=True,
    columns=SHOWN,
    extra=emergent,
)
