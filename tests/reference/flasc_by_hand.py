"""FLASC's rounds in the small world, in NumPy but for the gradient of a batch."""

import numpy as np
import optax

from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.sparsity import masks
from sparsefl_jax.testing import small_world
from tests.reference.averaging_by_hand import RATE, clients, flat, local_sgd
from tests.reference.averaging_by_hand import mean as mean_of
from tests.reference.by_hand import close

SIZE = 8 * 16 + 16 + 16 * 4 + 4  # of all leaves
ETA = 0.05  # of the server
FLASC = {"density": 0.25, "up_density": 0.1, "server_optimizer": optax.adam(ETA)}
GRADUAL = {
    **{"density": 1.0, "decay": 0.5, "train": "masked"},
    "server_optimizer": optax.adamw(ETA, weight_decay=0.5),
}
HALVED = {"down": (212, 106, 53, 26, 13), "masked": True, "decay": 0.5}


def sends_the_largest(world, down=(53,), up=(21,), masked=False, decay=0.0):
    """Checks all rounds: what comes down, what a client trains and sends, the step.

    Args:
      world: of `flasc` with Adam on the server.
      down, up: how many entries travel in each round, and the last in all that follow.
      masked: whether a client trains what it has received alone, and sends all of it.
      decay: AdamW's weight decay.
    """
    states = small_world.path(world)[0]
    moment, square = np.zeros(SIZE), np.zeros(SIZE)
    for round, cohort in enumerate(world.cohorts):
        old, new = (states[r].server.dense for r in (round, round + 1))
        w = flat(old.params)
        first = np.argsort(-np.abs(w), kind="stable")
        sent = np.zeros(SIZE, bool)
        sent[first[: down[min(round, len(down) - 1)]]] = True
        mean, stats = np.zeros(SIZE), []
        for _, data, passing in clients(world, round):
            came, went = passing.down["params"], passing.up["delta"]
            np.testing.assert_array_equal(flat(came.mask), sent)
            np.testing.assert_array_equal(flat(came.values), np.where(sent, w, 0))
            mask = came.mask if masked else masks.full(old.params)
            start = SparseModel(came.values, mask, old.stats)
            trained, own, _ = local_sgd(start, data, RATE * 0.9**round)
            delta, kept = flat(trained) - np.where(sent, w, 0), flat(went.mask)
            if masked:
                np.testing.assert_array_equal(kept, sent)
                assert not delta[~sent].any()
            else:
                assert kept.sum() == up[min(round, len(up) - 1)]
                smallest = np.abs(delta[kept]).min()
                assert smallest >= np.abs(delta[~kept]).max() - 1e-6
            close(flat(went.values), np.where(kept, delta, 0))
            close(passing.up["stats"].values, own)
            mean += flat(went.values) / len(cohort)
            stats.append(own)
        moment, square = 0.9 * moment - 0.1 * mean, 0.999 * square + 0.001 * mean**2
        root = np.sqrt(square / (1 - 0.999 ** (round + 1)))
        step = moment / (1 - 0.9 ** (round + 1)) / (root + 1e-8) + decay * w
        close(flat(new.params), w - ETA * step, 1e-5)
        close(new.stats, mean_of(stats))
    deployed = world.algorithm.deploy(world.key, states[-1].server)
    assert list(deployed) == ["global", "unpruned"]
    close(deployed["unpruned"].params, new.params, 0)
    assert flat(deployed["global"].mask).sum() == down[-1]
    w = flat(new.params)
    kept = np.abs(w) >= np.sort(np.abs(w))[-down[-1]]
    np.testing.assert_array_equal(flat(deployed["global"].params), np.where(kept, w, 0))
