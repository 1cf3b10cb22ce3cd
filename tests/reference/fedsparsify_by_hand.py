"""FedSparsify's rounds in NumPy: the purge, the mean, the vote."""

import numpy as np

from sparsefl_jax.testing import plain_loop, small_world
from sparsefl_jax.wire.packets import unpack_model
from tests.reference.averaging_by_hand import flat, sizes
from tests.reference.by_hand import close

DENSITY, ROUNDS = 0.25, 3  # the fourth round of the world lies beyond the schedule


def zeros(round, size):
    """int(s_t n) of Eq. (1), t = round + 1."""
    t = min(round + 1, ROUNDS)
    last = 1 - DENSITY
    return int((last - last * (1 - (t - 1) / (ROUNDS - 1)) ** 3) * size)


def purged(params, round):
    """What reaches the int(s n)-th smallest magnitude."""
    magnitude = np.abs(flat(params))
    return magnitude >= np.sort(magnitude)[zeros(round, magnitude.size)]


def means(world, round):
    """Each client's trained parameters and mask, and the mean of the parameters."""
    sent = [unpack_model(p.up) for p in plain_loop.passings(world, round)]
    trained = np.stack([flat(s.params) for s in sent])
    mean = np.average(trained, 0, sizes(world, round))
    return trained, np.stack([flat(s.mask) for s in sent]), mean


def purges_on_server(world):
    """The mean, cut by its smallest magnitudes; int(s n) zeros; nothing returns."""
    states = small_world.path(world)[0]
    for round, (old, new) in enumerate(zip(states, states[1:], strict=False)):
        mean, before = means(world, round)[2], flat(old.server.model.mask)
        mask = flat(new.server.model.mask)
        np.testing.assert_array_equal(mask, purged(mean, round) & before)
        close(flat(new.server.model.params), mask * mean)
        if round:  # all biases start at zero, which is a tie
            gone = max(zeros(round, mask.size), (~before).sum())
            assert mask.sum() == mask.size - gone


def purges_on_clients(world):
    """A client sends what its own purge leaves; half of a cohort must have kept it."""
    states = small_world.path(world)[0]
    for round, (old, new) in enumerate(zip(states, states[1:], strict=False)):
        trained, kept, mean = means(world, round)
        before = flat(old.server.model.mask)
        for mask in kept:  # what arrived as 0 is no candidate, though it may be a tie
            least = min(mask.size - zeros(round, mask.size), before.sum())
            assert mask.sum() >= least and not (mask & ~before).any()
        for params, mask in zip(trained, kept, strict=True):
            np.testing.assert_array_equal(params[~mask], 0)
        mask = kept.sum(0) >= len(kept) / 2
        np.testing.assert_array_equal(flat(new.server.model.mask), mask)
        close(flat(new.server.model.params), mask * mean)
    assert 0 < mask.mean() < 0.5
