"""This package as one of the peers: the real engine, all cores."""

from functools import partial

import jax
import numpy as np

import sparsefl_jax as sfl
from benchmarks import workload
from benchmarks.peers.turns import Turns, setup

# Methods by the names under which peers know them, with the arguments of the papers.
FLASH = {"density": 0.1, "prunable": ("conv2/kernel", "fc1/kernel")}
METHODS = {
    "fedavg": partial(sfl.fedavg, weighting="uniform"),
    "pdst": partial(sfl.pdst, **FLASH),
    "spafl": partial(sfl.spafl, clamp=True),
}


def text(at: dict) -> tuple:
    """Returns a pretrained encoder with adapters, without dropout, and sentences."""
    x, y = np.load(at["sentences"]).values()
    rows = np.arange(len(x)).reshape(at["clients"], at["samples"])
    test = {"x_test": x[:10], "y_test": y[:10], "test_split": "pooled"}
    data = sfl.from_arrays(x, y, **test, partition=list(rows))
    sizes = at["classes"], at["shape"]
    model = sfl.models.build(at["model"], *sizes, folder=at["encoder"], dropout=0.0)
    model = model.with_adapters(at["rank"])
    return model.with_preprocess(sfl.data.make_preprocess(tokens=True)), data


def main():
    """Rounds in turns, see `turns`."""
    turns, at = Turns(), setup()
    names = ("model", "clients", "samples", "cohort", "momentum", "written")
    made = workload.Workload(**{name: at[name] for name in names})
    made = made._replace(method=METHODS[at["method"]], batch_size=at["batch"])
    model, data = text(at) if at["model"] == "pretrained_encoder" else (None, None)
    one = workload.prepare(made, model=model, data=data)
    call = workload.going(one)
    shapes, _ = one.model.shapes()
    turns.tell(
        version=f"jax {jax.__version__}",
        parameters=sum(leaf.size for leaf in jax.tree.leaves(shapes)),
        steps=one.steps,
        compile_seconds=one.compile_seconds,
    )
    while turns.wait():
        call()
        turns.tell()


if __name__ == "__main__":
    main()
