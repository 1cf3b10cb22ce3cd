"""Ditto's personal models in the small world, in NumPy."""

from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.testing import plain_loop, small_world
from tests.averaging_by_hand import (
    RATE,
    assert_close,
    fedavg_by_hand,
    headline,
    local_sgd,
)

LAM = 0.5


def personalizes(world):
    """Checks FedAvg, and v_i of every client in every round.

    Args:
      world: of `ditto` with a strength of `LAM`.
    """
    fedavg_by_hand(world)
    states, own = small_world.path(world)[0], {}
    for round, ids in enumerate(world.cohorts.tolist()):
        common = headline(world, states[round].server)
        for i, passing in zip(ids, plain_loop.passings(world, round), strict=True):
            data = plain_loop.inputs(world, states[round], round, i)[-1]
            pull = {"pull": LAM, "anchor": common.params}
            start = own.get(i, common)
            trained = local_sgd(start, data, RATE * 0.9**round, **pull)[:2]
            assert_close((passing.client.params, passing.client.stats), trained)
            own[i] = SparseModel(trained[0], common.mask, trained[1])
    assert len(own) == len(small_world.SIZES)
