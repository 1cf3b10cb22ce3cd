"""FedLUAR's rounds in the small world, in NumPy."""

import numpy as np

from sparsefl_jax.testing import plain_loop, small_world
from tests.averaging_by_hand import RATE, assert_close, headline, local_sgd

LAYERS = ("fc1", "fc2")


def recycles(world):
    """Checks all rounds: what clients send, and how the server moves each layer.

    Args:
      world: of `fedluar` with one recycled layer.
    """
    states, seen = small_world.path(world)[0], set()
    for round, ids in enumerate(world.cohorts.tolist()):
        old, new = (states[i].server for i in (round, round + 1))
        skipped = [n for n, r in zip(LAYERS, old.recycled, strict=True) if r]
        assert len(skipped) == (round > 0) and new.recycled.sum() == 1
        seen |= {*skipped}
        weights, sent = [small_world.SIZES[i] for i in ids], []
        for index, passing in zip(ids, plain_loop.passings(world, round), strict=True):
            data = plain_loop.inputs(world, states[round], round, index)[-1]
            model = headline(world, old)
            trained, stats, _ = local_sgd(model, data, RATE * 0.9**round)
            for name in LAYERS:
                for leaf, start in old.params[name].items():
                    stays = leaf == "kernel" and name in skipped
                    change = trained[name][leaf] - start
                    got = passing.up["delta"].values[name][leaf]
                    assert_close(got, np.zeros_like(start) if stays else change)
            sent.append((passing.up["delta"].values, stats))
        for place, name in enumerate(LAYERS):
            old_u, new_u = old.last[place], new.last[place]
            kernels = [np.asarray(delta[name]["kernel"]) for delta, _ in sent]
            u = old_u if name in skipped else np.average(kernels, 0, weights)
            assert_close(new_u, u)
            start = old.params[name]["kernel"]
            assert_close(new.params[name]["kernel"], start + u)
            score = np.linalg.norm(u) / (np.linalg.norm(start) + 1e-6)
            score = old.score[place] if name in skipped else score
            assert_close(new.score[place], score)
            biases = [np.asarray(delta[name]["bias"]) for delta, _ in sent]
            moved = old.params[name]["bias"] + np.average(biases, 0, weights)
            assert_close(new.params[name]["bias"], moved)
        means = [np.asarray(stats["mean"]) for _, stats in sent]
        assert_close(new.stats["mean"], np.average(means, 0, weights))
    assert seen == {*LAYERS}  # in the rounds of these keys
