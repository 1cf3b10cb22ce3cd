"""What the tables of Complement Sparsification share: printed figures, rows, columns.

After its accuracy, the figures of a row are the density of what clients send, and the
share of FLOPs that this saves by the paper's count: Figures 2 to 9, Tables 2 to 5.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.tables import Row, Table
from sparsefl_jax import models, report
from sparsefl_jax.analysis import complement

SHOWN = ("client density", "FLOPs saved")
IC = {  # FEMNIST, 10 users a round: Figures 4, 5, 7, 9, Tables 3, 5
    "fedavg": "76.3",
    "cs0.5": "72.5, .096, .291",
    "cs0.6": "-, .157, .336",
    "cs0.7": "-, .172, .396",
    "cs0.8": "-, .109, .493",
    "cs0.9": "",
    "prunefl": "55.5",
    "prunefl_adam": "55.5",
    "pqsu": "57.9",
}
SA = {  # tweets, 10 users a round: Figures 3, 6, 8, Tables 2, 4
    "fedavg": "76.9",
    "cs0.5": "74.3, .068, .311",
    "cs0.6": "-, .116, .361",
    "cs0.7": "-, .159, .413",
    "cs0.8": "-, .188, .470",
    "cs0.9": "",
    "prunefl": "71.5",
    "prunefl_adam": "71.5",
    "pqsu": "73.4",
}
SA_ALL = {"fedavg": "76.1", "cs0.5": "73.3"}  # tweets, all users: Figure 2
_ADAM = {  # the hyper-parameters of the other methods, which the paper says it used
    "optimizer.name": "adam",
    "optimizer.learning_rate": 0.01,
    "epochs": 5,
    "batch_size": 64,
}
_HALF = {"algorithm.density": 0.5}  # of SA's neurons: half of its weights


def rows(
    config: str,
    printed: dict[str, str],
    option: str = "",
    overrides: dict | None = None,
    needs: str = "",
) -> dict[str, Row]:
    """Returns the row of every printed figure; `cs0.6` has p = 0.6.

    `prunefl` trains as PruneFL's code does, `prunefl_adam` as the other methods.

    Args:
      config: the configuration's file.
      printed: the figures by row.
      option: a further option of the configuration.
      overrides: fields of all rows.
      needs: as in `Row`.
    """
    found = {}
    for name, figures in printed.items():
        method, own = name, overrides or {}
        if name.startswith("cs"):
            method, own = "cs", own | {"density": round(1 - float(name[2:]), 1)}
        elif name == "prunefl_adam":
            method, own = "prunefl", own | _ADAM
        elif name == "pqsu" and printed is SA:
            own = own | _HALF
        argument = ",".join(filter(None, (method, option)))
        found[name] = Row(f"{config}:{argument}", figures, own, needs)
    return found


def table(found: dict[str, Row], *network, seeds: int = 1) -> Table:
    """Returns the table of some rows, whose best rounds count.

    Args:
      found: the rows.
      *network: what `emergent` takes.
      seeds: how many to run of each row.
    """
    return Table(found, seeds, best=True, columns=SHOWN, extra=emergent(*network))


def emergent(network: str, classes: int, shape: tuple[int, ...]) -> Callable:
    """Returns what reads a run's folder: client densities, and what they save.

    The densities, by layer and of all kernels, are means over the rounds after the
    first. {} for another method.
    """
    model = models.build(network, classes, shape)
    params, _ = model.shapes()

    def read(path: Path) -> dict[str, float]:
        rounds = [
            record.get("client", {})
            for record in report.read_records(path / "metrics.jsonl")
            if record["phase"] == "train" and record["round"] > 1
        ]
        if "client_density" not in rounds[0]:
            return {}
        density = json.loads((path / "config.json").read_text())["algorithm"]["density"]

        def mean(key):
            return float(np.mean([record[key] for record in rounds]))

        told: dict[str, float] = {}
        saved, flops = [], []
        for name, layer in params.items():
            told[name] = mean(f"client_density/{name}/kernel")
            macs = model.macs[name]["kernel"], layer["kernel"].shape[-1]
            flops.append(complement.complement_flops(*macs))
            saved.append(complement.complement_saving(*macs, density, told[name]))
        shown = mean("client_density"), float(np.average(saved, weights=flops))
        told.update(zip(SHOWN, shown, strict=True))
        return told

    return read
