"""Draws SpaFL's generalization bound against the number of values that are trained.

`python examples/spafl_bound.py docs/_static/spafl_bound.svg` writes the figure of
docs/theory.md; the suffix gives the format. Theorem 1 depends on the number n of
thresholds by M_g, the diameter of their gradients. An equal share of each threshold
gives M_g = m sqrt(n); the figure assumes m = 0.01 sigma. It takes no training.
"""

import sys
from pathlib import Path

import jax
import numpy as np

import sparsefl_jax as sfl
from sparsefl_jax.report import figure

SHARE = 0.01  # m / sigma
SAMPLES, BATCH, ROUNDS, DELTA = 60_000, 64, 500, 1e-8  # Fashion-MNIST as in the paper
DENSITIES = (0.1, 0.35, 1.0)


def bounds(density, dimensions):
    """Returns 9 epsilon, NaN without a value, and where Theorem 1 holds; both [n]."""
    gaps, holds = np.full(len(dimensions), np.nan), np.zeros(len(dimensions), bool)
    for place, dimension in enumerate(dimensions):
        diameter = SHARE * np.sqrt(dimension)
        facts = 1.0, DELTA, BATCH, SAMPLES, ROUNDS
        try:
            told = sfl.analysis.generalization(density, diameter, *facts)
        except ValueError:  # too large for eq. 15
            continue
        gaps[place], holds[place] = told.gap, told.least_samples <= SAMPLES
    return gaps, holds


def sizes():
    """Returns the numbers of thresholds and of parameters of LeNet-5-Caffe."""
    model = sfl.models.build("lenet5_caffe", 10, (28, 28, 1))
    method = sfl.spafl(model, sfl.training.make_optimizer())

    def start(key):
        params, stats = model.init(key)
        mask = sfl.masks.full(params)
        return method.init(key, sfl.SparseModel(params, mask, stats))

    server = jax.eval_shape(start, jax.random.key(0))
    trees = server.thresholds, server.model.params
    return [sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in trees]


def main(path):
    dimensions = np.geomspace(10, 1e6, 300)
    with figure.axes(path, "values trained and sent, n", "bound of the gap") as ax:
        for color, density in zip(figure.COLORS, DENSITIES, strict=False):
            gaps, holds = bounds(density, dimensions)
            ax.plot(dimensions, gaps, ":", color=color)
            label = f"density {density:g}"
            ax.plot(dimensions, np.where(holds, gaps, np.nan), color=color, label=label)
        for size, name in zip(sizes(), ("thresholds", "parameters"), strict=True):
            ax.axvline(size, color=figure.FAINT, linewidth=0.8)
            ax.annotate(
                f" {size:,} {name}",
                (size, 0.95),
                ha="right",
                rotation=90,
                va="top",
                fontsize=8,
                color=figure.FAINT,
            )
        ax.set(xscale="log", ylim=(0, 1), xlim=(10, 1e6))
        ax.figure.legend(loc="outside lower left", ncols=3)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
