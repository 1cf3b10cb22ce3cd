"""How the Dirichlet parameter shapes the classes of clients."""

from pathlib import Path

import matplotlib
import numpy as np

import sparsefl_jax as sfl
from docs.figures.card import figure

CLIENTS = 12
PARTITIONS = {
    "Dirichlet, alpha = 0.1": ("dirichlet", {"alpha": 0.1}),
    "Dirichlet, alpha = 0.5": ("dirichlet", {"alpha": 0.5}),
    "IID": ("iid", {}),
}


def draw(path: Path) -> None:
    """Draws the labels of each client's samples under three partitions."""
    dataset = sfl.data.load("fashion_mnist_sample")
    options = {"ncols": len(PARTITIONS), "sharey": True, "layout": "constrained"}
    with figure(path, 8.2, 2.9, **options) as (fig, axes):
        for ax, (title, (name, kwargs)) in zip(axes, PARTITIONS.items(), strict=True):
            data = sfl.federate(dataset, name, CLIENTS, seed=0, **kwargs)
            counts = sfl.data.partition_counts(data)  # [N, classes]
            bottoms = np.cumsum(counts, 1) - counts
            colors = matplotlib.colormaps["cividis"](np.linspace(0, 1, counts.shape[1]))
            for column, bottom, color in zip(counts.T, bottoms.T, colors, strict=True):
                edge = {"edgecolor": "white", "linewidth": 0.4}
                ax.bar(np.arange(CLIENTS), column, 0.85, bottom, color=color, **edge)
            ax.set(title=title, xlabel="client", xticks=range(0, CLIENTS, 3))
            ax.grid(visible=False, axis="x")
        axes[0].set_ylabel("training samples")
        scale = matplotlib.cm.ScalarMappable(
            matplotlib.colors.Normalize(-0.5, len(colors) - 0.5),
            matplotlib.colors.ListedColormap(colors),
        )
        bar = fig.colorbar(scale, ax=axes, ticks=range(len(colors)), pad=0.01)
        bar.set_label("class")
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=0)
