"""PQSU's client and server by NumPy, for the contract test."""

import jax
import numpy as np

from sparsefl_jax.testing import small_world
from tests.reference.averaging_by_hand import RATE, clients, mean, moved, valid
from tests.reference.by_hand import close, gradient, same

DENSITY = 0.5


def uploads_what_helps(world):
    """All rounds by hand, each from where the one before ended; one upload is left."""
    states, logs = small_world.path(world)
    kept = states[0].server.mask["fc1"]["bias"]
    norms = np.abs(world.model.params["fc1"]["kernel"]).sum(0)
    half = int(small_world.HIDDEN * DENSITY)
    np.testing.assert_array_equal(kept, norms >= np.sort(norms)[-half])
    uploads = []
    for round, (state, new) in enumerate(zip(states, states[1:], strict=False)):
        server, mine, loss = state.server, [], state.clients.copy()
        for place, (index, data, passing) in enumerate(clients(world, round)):
            start = jax.tree.map(rounded, server.params, server.mask)
            params, stats, own = train(start, server, data, RATE * 0.9**round)
            uploads.append(bool(own < loss[index]))
            assert uploads[-1] == all(p.sent for p in passing.up.values())
            assert uploads[-1] == any(p.sent for p in passing.up.values())
            assert uploads[-1] == logs[round].clients.metrics["uploaded"][place]
            first = not any(index in ids for ids in world.cohorts[:round])
            assert passing.down["filters"].fresh == first
            same(passing.down["filters"].mask["fc1"], kept)
            sent = read(passing.up)
            # One step of the grid where rounding fell on the other side.
            jax.tree.map(within_a_step, sent, params, passing.up["grid"].values.scale)
            if uploads[-1]:
                loss[index] = own
                mine.append((sent, stats))
        close((new.server.params, new.server.stats), mean(mine))
        close(new.clients, loss, 1e-5)
        same(new.server.mask, server.mask)
    assert 0 < uploads.count(False) < 4


def rounded(values, mask):
    """Quantises to 256 steps from the least to the largest value, including 0."""
    low, high = min(values.min(), 0), max(values.max(), 0)
    scale = np.float32((high - low) / 255) or np.float32(1)
    zero = np.round(-low / scale)
    codes = np.clip(np.round(values / scale) + zero, 0, 255)
    return np.where(mask, scale * (codes - zero), 0).astype(np.float32)


def read(message):
    """The weights of a message: alive codes, less the zero point, times the scale."""

    def leaf(codes, mask, scale, zero):
        assert codes.dtype == np.uint8
        return np.where(mask, scale * (codes.astype(np.float32) - zero), 0)

    packet, grid = message["weights"], message["grid"].values
    return jax.tree.map(leaf, packet.values, packet.mask, grid.scale, grid.zero)


def train(params, server, data, rate):
    """Runs momentum SGD within the mask, and returns the mean loss."""
    velocity = jax.tree.map(np.zeros_like, params)
    stats, total, count = server.stats, 0.0, 0
    for rows in valid(data):
        x, y = data.x[rows], data.y[rows]
        total, count = total + loss(params, x, y), count + rows.size
        grads, stats = gradient(params, stats, x, y)
        params, velocity = moved(params, velocity, grads, rate)
        params = jax.tree.map(lambda p, m: np.where(m, p, 0), params, server.mask)
    return params, stats, total / count


def loss(params, x, y):
    """The sum of the cross-entropy over a batch."""
    first, second = params["fc1"], params["fc2"]
    hidden = np.asarray(x) @ first["kernel"] + first["bias"]
    logits = np.tanh(hidden - 0.5 * hidden.mean(0)) @ second["kernel"] + second["bias"]
    return np.sum(np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y])


def within_a_step(got, want, scale):
    assert np.abs(got - want).max() <= scale * 1.001
    assert np.mean(np.abs(got - want) > scale * 0.501) < 0.1
