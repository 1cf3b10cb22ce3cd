"""Statistics of a partition, and the plot of its counts."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

import sparsefl_jax as sfl


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
        (image,) = ax.images
        shares = np.asarray(image.get_array())
        np.testing.assert_array_equal(shares, 100 * np.repeat(np.eye(2), 40, axis=1))
    ax.figure.canvas.draw()
    plt.close(ax.figure)
