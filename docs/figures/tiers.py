"""The nested masks of clients with different budgets, as they come down."""

from pathlib import Path

import numpy as np

import sparsefl_jax as sfl
from docs.figures import card, messages, recording

BUDGETS = (0.3, 0.5, 1.0)
METHODS = {  # the stages of a run
    "HeteroFL: width by budget": [(sfl.heterofl, {})],
    "FjORD: widths 0.3, 0.5, 1": [(sfl.fjord, {"widths": BUDGETS})],
    "hetero-SPDST: densities 0.2, 0.4, 0.6": [
        (sfl.sensitivity, {"density": 0.6}),
        (sfl.hetero_spdst, {"densities": (0.2, 0.4, 0.6)}),
    ],
}
TIER = {"budget 0.3": card.NEW, "budget 0.5": card.SENT, "budget 1": card.ALIVE}


def draw(path: Path) -> None:
    """Draws, for each entry, the smallest budget whose clients hold it."""
    model = recording.tiny_model()
    optimizer = sfl.training.make_optimizer(learning_rate=0.3)
    with card.canvas(path, 470, 112) as ax:
        ax.text(8, 10, "held from", fontsize=7.5, color=card.QUIET, va="center")
        card.key(ax, 48, 10, TIER)
        card.key(ax, 262, 10, {"held by nobody": card.DEAD})
        for i, (title, methods) in enumerate(METHODS.items()):
            stages = [
                sfl.Stage(factory(model, optimizer, **kwargs), 1, 1, batch_size=8)
                for factory, kwargs in methods
            ]
            budgets = np.array(BUDGETS, np.float32)
            everyone = [((0, 1, 2),)] * len(stages)
            *_, cohort = recording.record(stages, everyone, budgets=budgets).values()
            colors = {}
            for exchange, color in zip(cohort, TIER.values(), strict=True):
                for p, held in _held(exchange).items():
                    before = colors.get(p, np.full(held.shape, card.DEAD))
                    colors[p] = np.where(held & (before == card.DEAD), color, before)
            x = 8 + 154 * i
            ax.text(x, 36, title, fontsize=7.5, va="center")
            messages.draw_sheet(ax, x, 46, colors, 7.6)


def _held(exchange: recording.Exchange) -> messages.Leaves:
    """Returns where the network that comes down to a client has entries."""
    base = messages.network(exchange.mask)
    came = messages.received(exchange.down, base)
    return {p: color == card.ALIVE for p, color in came.items()}
