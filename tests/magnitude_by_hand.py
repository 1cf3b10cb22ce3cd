"""Magnitude pruning in the small world, in NumPy."""

import jax
import numpy as np

from sparsefl_jax.algorithms import magnitude
from sparsefl_jax.testing import small_world
from tests.averaging_by_hand import headline, is_fedavg
from tests.flash_by_hand import frozen

DENSITY = 0.3


def cuts(world):
    """Checks the mask, that training stays within it, and FedAvg at density 1.

    Args:
      world: of `magnitude` with `DENSITY` and the global scope.
    """
    before = jax.tree.map(np.asarray, world.model.params)
    model = headline(world, small_world.start(world).server)
    kernels = [before[n]["kernel"].reshape(-1) for n in ("fc1", "fc2")]
    flat = np.abs(np.concatenate(kernels))
    kept = np.zeros(flat.size, bool)
    kept[np.argsort(-flat, kind="stable")[: int(flat.size * DENSITY)]] = True
    parts = np.split(kept, [kernels[0].size])
    for name, part, kernel in zip(("fc1", "fc2"), parts, kernels, strict=True):
        np.testing.assert_array_equal(model.mask[name]["kernel"].reshape(-1), part)
        got = model.params[name]["kernel"].reshape(-1)
        np.testing.assert_array_equal(got, np.where(part, kernel, 0))
        assert model.mask[name]["bias"].all()
    frozen(world)
    is_fedavg(small_world.make_world(magnitude, {"density": 1.0}))
