"""FedSparsify's schedule, as runs follow it."""

from pathlib import Path

import jax

import sparsefl_jax as sfl
from docs.figures import card
from docs.figures.recording import tiny_data, tiny_model

ROUNDS, DENSITY = 40, 0.1
RUNS = (  # arguments, line style, name and where it stands
    ({}, "-", "n = 3, F = 1, as in the paper", (14, 66), "right"),
    ({"frequency": 8}, "-", "n = 3, F = 8", (16.5, 55), "left"),
    ({"power": 1.0}, "--", "n = 1, F = 1: linear", (25, 42), "left"),
)


def draw(path: Path) -> None:
    """Draws the share of weights that the server's model has lost, round by round."""
    optimizer = sfl.training.make_optimizer(learning_rate=0.1)
    with card.figure(path, 5.6, 3.0, layout="constrained") as (_, ax):
        colors = (card.NEW, card.SENT, card.QUIET)
        for (kwargs, style, name, at, side), color in zip(RUNS, colors, strict=True):
            method = sfl.fedsparsify_global(
                tiny_model(), optimizer, density=DENSITY, rounds=ROUNDS, **kwargs
            )
            stage = sfl.Stage(method, ROUNDS, 3, batch_size=8)
            run = sfl.run(
                jax.random.key(0), [stage], tiny_model(), tiny_data(), eval_every=ROUNDS
            )
            rounds = [r for r in run.metrics if r["phase"] == "train"]
            lost = [100 * (1 - r["density"]) for r in rounds]
            ax.step(range(1, ROUNDS + 1), lost, style, where="mid", color=color)
            ax.text(*at, name, ha=side, va="center", fontsize=8, color=color)
        ax.set(xlabel="round", ylabel="sparsity, %", ylim=(0, 100), xlim=(0, ROUNDS))
