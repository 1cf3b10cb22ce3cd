"""A round with slow clients and a deadline, dense and sparse."""

from pathlib import Path

import jax
import numpy as np

import sparsefl_jax as sfl
from docs.figures import card

CLIENTS, COHORT = 30, 10
METHODS = {
    "FedAvg": (sfl.fedavg, {}),
    "PDST, density 0.1": (sfl.pdst, {"density": 0.1}),
}
TIERS = {"high": card.NEW, "mid": card.SENT, "low": card.ALIVE}


def draw(path: Path) -> None:
    """Draws when each client of a round finishes."""
    dataset = sfl.data.load("fashion_mnist_sample")
    data = sfl.federate(dataset, "dirichlet", CLIENTS, alpha=0.5, seed=0)
    model = sfl.models.build("mlp", 10, (28, 28, 1))
    system = sfl.make_system("mobile", CLIENTS, quantile=0.5)
    options = {"ncols": 2, "sharex": True, "sharey": True, "layout": "constrained"}
    with card.figure(path, 7.6, 2.9, **options) as (_, axes):
        for ax, (name, (factory, kwargs)) in zip(axes, METHODS.items(), strict=True):
            method = factory(model, sfl.training.make_optimizer(), **kwargs)
            run = sfl.run(
                jax.random.key(0),
                [sfl.Stage(method, 1, COHORT)],
                model,
                data,
                system=system,
            )
            _draw_round(ax, name, run.metrics[0], system)
            ax.set_xlabel("seconds")
        axes[0].set(ylabel="clients of the round", xlim=(0, 3.1))


def _draw_round(ax, name: str, record: dict, system) -> None:
    """Draws the clients of a round, fastest first, and where it closes."""
    seconds = np.array(record["seconds_by_client"])
    order, closes = np.argsort(seconds), 3600 * record["hours"]
    tiers = [system.tiers[system.tier[record["clients"][i]]] for i in order]
    for y, (tier, end) in enumerate(zip(tiers, seconds[order], strict=True)):
        late = bool(end > closes * (1 + 1e-6))
        style = {"hatch": "////", "edgecolor": card.QUIET} if late else {}
        ax.barh(y, end, 0.75, color=TIERS[tier], **style)
        beside = {"xytext": (3, 0), "textcoords": "offset points", "va": "center"}
        ax.annotate(tier + ", late" * late, (end, y), **beside, fontsize=7)
    ax.axvline(closes, color=card.INK, lw=1)
    ends = "closed by the deadline" if record["dropped"] else "all done"
    ax.set_title(f"{name}: {ends} at {closes:.2f} s")
    ax.set(yticks=(), ylim=(COHORT - 0.4, -0.6))
    ax.grid(visible=False, axis="y")
