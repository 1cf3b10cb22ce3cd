"""Fine-tuning in the small world, in NumPy."""

from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.testing import plain_loop, small_world
from tests.averaging_by_hand import RATE, assert_close, headline, local_sgd

SCALE = 0.5


def tunes(world):
    """Checks every client's model after each round, and that the server's stays.

    Args:
      world: of `finetune` with a scale of `SCALE`.
    """
    states = small_world.path(world)[0]
    common, own = headline(world, states[0].server), {}
    for round, ids in enumerate(world.cohorts.tolist()):
        for i, passing in zip(ids, plain_loop.passings(world, round), strict=True):
            data = plain_loop.inputs(world, states[round], round, i)[-1]
            rate = SCALE * RATE * 0.9**round
            params, stats, _ = local_sgd(own.get(i, common), data, rate)
            assert_close((passing.client.params, passing.client.stats), (params, stats))
            own[i] = SparseModel(params, common.mask, stats)
            assert not passing.up
        assert_close(headline(world, states[round + 1].server).params, common.params)
