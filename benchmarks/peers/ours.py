"""This package as one of the peers: the real engine, all cores."""

from functools import partial

import jax

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


def main():
    """Rounds in turns, see `turns`."""
    turns, at = Turns(), setup()
    names = ("model", "clients", "samples", "cohort", "momentum", "written")
    made = workload.Workload(**{name: at[name] for name in names})
    made = made._replace(method=METHODS[at["method"]], batch_size=at["batch"])
    one = workload.prepare(made)
    call = workload.going(one)
    shapes, _ = jax.eval_shape(one.model.init, jax.random.key(0))
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
