"""Statistics of a partition, by hand; where a run has them; the plot of its counts."""

import json

import matplotlib.pyplot as plt
import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.data import partition_statistics

# Shares 1/2 1/4 1/4: 1.5 bits. One class: 0 bits. Four equal classes: 2 bits.
COUNTS = np.array([[4, 2, 2, 0], [0, 0, 0, 3], [5, 5, 5, 5], [0, 1, 0, 0]])


def test_statistics_by_hand():
    found = partition_statistics(COUNTS)
    assert found == {
        "number": 4,
        "train": {"min": 1, "median": 5.5, "max": 20},
        "entropy": {"mean": 3.5 / 4, "min": 0.0, "max": 2.0},
        "largest_share": 20 / 32,
    }
    assert json.loads(json.dumps(found)) == found
    assert "-0" not in json.dumps(found)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("clients", [4, 80])
def test_plot_partition_draws_the_counts(clients):
    y = np.arange(400) % 2
    parts = np.split(np.argsort(y, kind="stable"), clients)
    data = sfl.from_arrays(np.zeros((400, 2)), y, partition=parts, test_fraction=0.2)
    ax = sfl.plot_partition(data)
    if clients == 4:
        heights = [patch.get_height() for patch in ax.patches]
        assert heights == [80, 80, 0, 0, 0, 0, 80, 80]  # by class, then by client
    else:
        (image,) = ax.child_axes[1].images
        shares = np.asarray(image.get_array())
        np.testing.assert_array_equal(shares, 100 * np.repeat(np.eye(2), 40, axis=1))
    ax.figure.canvas.draw()
    plt.close(ax.figure)
