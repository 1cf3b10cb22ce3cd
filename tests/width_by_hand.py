"""What slices of a network keep in the small world, and when they are FedAvg."""

import numpy as np

from sparsefl_jax.algorithms import fedavg, fjord, heterofl
from sparsefl_jax.testing import plain_loop, small_world
from tests.averaging_by_hand import assert_close, is_fedavg

GRID = {"widths": (0.3, 0.4, 0.5)}


def with_budgets(world, budgets):
    """Returns the same world with other budgets for its five clients."""
    info = world.population.info._replace(budget=np.full(5, budgets, np.float32))
    return world._replace(population=world.population._replace(info=info))


def slices(world):
    """Checks that prefixes of the hidden layer travel, and no client's entries stay.

    At width 1 the new model is the plain mean of all clients.
    """
    states = small_world.path(world)[0]
    for round in range(2):
        held = np.zeros(small_world.HIDDEN, bool)
        for index, passing in zip(
            world.cohorts[round], plain_loop.passings(world, round), strict=True
        ):
            units = np.arange(small_world.HIDDEN) < np.ceil(
                small_world.BUDGETS[index] * small_world.HIDDEN
            )
            held |= units
            mask = passing.down["params"].mask
            np.testing.assert_array_equal(mask["fc1"]["kernel"].all(0), units)
            np.testing.assert_array_equal(mask["fc1"]["kernel"].any(0), units)
            np.testing.assert_array_equal(mask["fc2"]["kernel"].all(1), units)
        old, new = (s.server.params["fc1"]["kernel"] for s in states[round : round + 2])
        np.testing.assert_array_equal((old != new).any(0), held)
    whole = with_budgets(small_world.make_world(heterofl, {"mask_classes": False}), 1.0)
    mean = small_world.make_world(fedavg, {"weighting": "uniform"})
    got, want = (
        small_world.run(w, small_world.start(w), 0)[0].server for w in (whole, mean)
    )
    assert_close((got.params, got.stats), (want.params, want.stats))


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
