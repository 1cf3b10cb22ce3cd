"""Plots accuracy against traffic for five methods: `python -m examples.five_methods`.

It trains an MLP on 2,000 Fashion-MNIST images that ship with the package, dealt to 20
clients, in 75 s of CPU time. It writes `docs/_static/five_methods.svg`, or the file
named on the command line.
"""

import sys
from pathlib import Path

import jax
import matplotlib.pyplot as plt

import sparsefl_jax as sfl

PICTURE = Path(__file__).parent.parent / "docs" / "_static" / "five_methods.svg"
ROUNDS, COHORT = 60, 5


def stages(model, optimizer) -> dict[str, list[sfl.Stage]]:
    """Returns the stages of the five runs by label."""

    def make(method, **arguments):
        return method(model, optimizer, **arguments)

    def stage(algorithm, num_rounds=ROUNDS):
        return sfl.Stage(algorithm, num_rounds, COHORT, epochs=2)

    first = stage(make(sfl.sensitivity, density=0.1), 1)
    progressive = make(sfl.fedsparsify_global, density=0.1, rounds=ROUNDS)
    return {
        "FedAvg": [stage(make(sfl.fedavg))],
        "Complement, density 0.5": [stage(make(sfl.complement, density=0.5))],
        "FedSparsify, to density 0.1": [stage(progressive)],
        "JMWST, density 0.1": [first, stage(make(sfl.jmwst, density=0.1))],
        "SPDST, density 0.1": [first, stage(make(sfl.spdst))],
    }


def main(picture: Path = PICTURE, rounds: int = ROUNDS) -> None:
    """Runs the five methods and draws one line for each."""
    data = sfl.data.load("fashion_mnist_sample")
    data = sfl.federate(data, "dirichlet", 20, alpha=0.5)
    model = sfl.models.build("mlp", data.num_classes, data.x.shape[1:])
    model = model.reading(sfl.data.make_preprocess(data.mean, data.std))
    optimizer = sfl.training.make_optimizer("sgd", learning_rate=0.1)
    figure, ax = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    for name, run in stages(model, optimizer).items():
        run = [s._replace(num_rounds=min(s.num_rounds, rounds)) for s in run]
        result = sfl.run(jax.random.key(0), run, model, data, eval_every=3)
        evaluated = [r for r in result.metrics if r["phase"] == "eval"]
        accuracy = [100 * r["accuracy"] for r in evaluated]
        gbit = [r["gbit_cumulative"] for r in evaluated]
        ax.plot(gbit, accuracy, ".-", label=name)
        print(f"{name:28} {accuracy[-1]:5.1f} % {gbit[-1]:7.3f} Gbit", flush=True)
    ax.set(xscale="log", xlabel="traffic, both ways [Gbit]", ylabel="accuracy [%]")
    ax.grid(alpha=0.3)
    ax.legend()
    plt.rcParams["svg.hashsalt"] = "five methods"  # equal runs give equal files
    figure.savefig(picture, metadata={"Date": None})


if __name__ == "__main__":
    sfl.use_cpu_cores()
    main(*map(Path, sys.argv[1:2]))
