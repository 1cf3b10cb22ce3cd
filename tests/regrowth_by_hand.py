"""Pruning and growth of layers in NumPy, and clients that do it in the small world."""

import jax
import numpy as np

from sparsefl_jax.testing import plain_loop, small_world
from sparsefl_jax.wire.messages import unpack_model
from tests.averaging_by_hand import RATE, assert_close, local_sgd
from tests.by_hand import gradient

LAYERS = ("fc1", "fc2")


def best(scores, count, among):
    """Returns the mask of the `count` largest scores among some entries."""
    scores, among = np.asarray(scores), np.asarray(among)
    order = np.argsort(np.where(among, -scores, np.inf), axis=None, kind="stable")
    mask = np.zeros(scores.size, bool)
    mask[order[: min(count, among.sum())]] = True
    return mask.reshape(scores.shape)


def swapped(params, mask, scores, kept, alive):
    """Prunes the kernels to `kept` by magnitude, and grows them to `alive` by scores.

    Args:
      params, mask, scores: trees of the small world.
      kept, alive: counts by layer.

    Returns:
      The parameters, 0 where an entry has grown, and the mask.
    """
    params, mask = jax.device_get((params, mask))
    new_params, new_mask = jax.tree.map(np.copy, (params, mask))
    for name in LAYERS:
        w, m = params[name]["kernel"], mask[name]["kernel"]
        stay = best(np.abs(w), kept[name], m)
        grown = best(scores[name]["kernel"], alive[name] - stay.sum(), ~stay)
        new_params[name]["kernel"] = np.where(stay, w, 0)
        new_mask[name]["kernel"] = stay | grown
    return new_params, new_mask


def trained(world, round, index, model):
    """Returns the parameters and statistics after a client's round, and its data."""
    state = small_world.path(world)[0][round]
    data = plain_loop.inputs(world, state, round, index)[-1]
    params, stats, _ = local_sgd(model, data, RATE * 0.9**round)
    return params, stats, data


def steepness(params, stats, data, step):
    """Returns the magnitude of the gradient of one batch, -1 for the last one."""
    steps = [
        rows[np.asarray(w) > 0]
        for rows, w in zip(data.order[0], data.weight[0], strict=True)
    ]
    rows = [rows for rows in steps if rows.size][step]
    grads, _ = gradient(params, stats, data.x[rows], data.y[rows])
    return jax.tree.map(np.abs, jax.device_get(grads))


def counts(mask):
    return {name: int(np.sum(mask[name]["kernel"])) for name in LAYERS}


# FedDST at d = .5: layers of 128 and 64 have raw densities 24/128 and 20/64, so that
# sparsities are S 192 / (104 + 44) (104/128, 44/64), S = .5: 60.5 and 35.5 are alive.
FEDDST = {"density": 0.5, "adjust_until": 4, "adjust_every": 2, "prune_rate": 0.5}
HALF = {"fc1": 60, "fc2": 35}
# S = 1 - .5 (1 - a), a = (1 + cos(pi / 4)) / 4 = .42678 and (1 + cos(3 pi / 4)) / 4
CUT = {1: {"fc1": 31, "fc2": 23}, 3: {"fc1": 55, "fc2": 33}}


def readjusts(world):
    """FedDST's four rounds: clients readjust in rounds 1 and 3, the server prunes."""
    states, logs = small_world.path(world)
    assert counts(states[0].server.model.mask) == HALF
    for name in LAYERS:  # the first mask is by magnitude
        w = world.model.params[name]["kernel"]
        np.testing.assert_array_equal(
            states[0].server.model.mask[name]["kernel"],
            best(np.abs(w), HALF[name], np.ones(w.shape, bool)),
        )
    for round, cohort in enumerate(world.cohorts.tolist()):
        sent, weights = [], []
        passings = plain_loop.passings(world, round)
        for index, passing in zip(cohort, passings, strict=True):
            model = unpack_model(passing.down)
            params, stats, data = trained(world, round, index, model)
            mask = model.mask
            if round in CUT:
                scores = steepness(params, stats, data, -1)
                params, mask = swapped(params, mask, scores, CUT[round], HALF)
            got = unpack_model(passing.up)
            assert_close(got.mask, mask)
            assert_close((got.params, got.stats), (params, stats))
            assert passing.up["weights"].fresh == (round in CUT)
            assert counts(mask) == HALF
            sent.append((params, mask))
            weights.append(small_world.SIZES[index])
        new = states[round + 1].server.model
        for name in LAYERS:
            values = [p[name]["kernel"] for p, _ in sent]
            held = [
                w * m[name]["kernel"] for w, (_, m) in zip(weights, sent, strict=True)
            ]
            total = sum(h * v for h, v in zip(held, values, strict=True))
            union = sum(held) > 0
            mean = np.where(union, total / np.maximum(sum(held), 1), 0)
            mask = best(np.abs(mean), HALF[name], union)
            assert (round in CUT) == (union.sum() > HALF[name])
            np.testing.assert_array_equal(new.mask[name]["kernel"], mask)
            assert_close(new.params[name]["kernel"], np.where(mask, mean, 0))
            bias = np.average([p[name]["bias"] for p, _ in sent], 0, weights)
            assert_close(new.params[name]["bias"], bias)
    assert logs[1].mismatch > 0
