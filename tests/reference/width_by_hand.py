"""What slices of a network keep in the small world, and when they are FedAvg."""

import numpy as np

from sparsefl_jax.algorithms import fjord
from sparsefl_jax.testing import small_world
from tests.reference.averaging_by_hand import is_fedavg

GRID = {"widths": (0.3, 0.4, 0.5)}


def with_budgets(world, budgets):
    """Returns the same world with other budgets for its five clients."""
    info = world.population.info._replace(budget=np.full(5, budgets, np.float32))
    return world._replace(population=world.population._replace(info=info))


def drops_widths(world):
    """Checks that entries beyond the largest budget stay; at width 1, FedAvg."""
    start, *_, end = small_world.path(world)[0]
    beyond = (
        np.arange(small_world.HIDDEN) >= max(small_world.BUDGETS) * small_world.HIDDEN
    )
    for name, axis in (("fc1", 1), ("fc2", 0)):
        old, new = (s.server.params[name]["kernel"] for s in (start, end))
        still = (old == new).all(1 - axis)
        np.testing.assert_array_equal(still, beyond)
    is_fedavg(small_world.make_world(fjord, {"widths": (1.0,)}))
