"""FedMRN's and FedBAT's clients and server in NumPy, for the contract test.

JAX draws and differentiates the network; all that the methods add is NumPy.
"""

import jax
import numpy as np

from sparsefl_jax.testing import plain_loop, small_world
from tests.reference import averaging_by_hand as averaging
from tests.reference.by_hand import LAYERS, close, gradient

MRN = {"magnitude": 0.05}  # of the size of an update here
BAT = {"alpha_range": (0.01, 0.03), "warmup": 0.4, "rho": 3.0}


def learns_masks(world, lowest=0.0):
    """Checks FedMRN's clients and server in all rounds."""
    for old, new, weights, of_clients in rounds(world):
        moves = []
        for key, rate, data, up in of_clients:
            sent = masked_client(old, data, key, rate, lowest)
            compare(up, sent, "mask", "seed")
            move = {n: sent["z"][n] * level(sent["mask"][n], lowest) for n in LAYERS}
            moves.append((move, sent["rest"]))
        merges(old, new, moves, weights)


def learns_signs(world):
    """Checks FedBAT's clients and server in all rounds."""
    steps = set()
    for old, new, weights, of_clients in rounds(world):
        moves = []
        for key, rate, data, up in of_clients:
            sent = signed_client(old, data, key, rate)
            compare(up, sent, "signs")
            for name in LAYERS:
                alpha = up["alpha"].values[name]["kernel"]
                np.testing.assert_allclose(alpha, sent["alpha"][name], rtol=2e-5)
            steps |= {sent["steps"]}
            alpha = sent["alpha"]
            move = {n: alpha[n] * level(sent["signs"][n], -1) for n in LAYERS}
            moves.append((move, sent["rest"]))
        merges(old, new, moves, weights)
    assert steps >= {1, 3, 7}  # each client changes over at a step of its own


def rounds(world):
    """Yields the servers before and after each round, and of its clients the numbers of
    samples, and the key, the rate, the batches and the uplink of each.
    """
    states, _ = small_world.path(world)
    for round in range(len(world.cohorts)):
        found = []
        for index, data, passing in averaging.clients(world, round):
            key, *_ = plain_loop.inputs(world, states[round], round, index)
            own = jax.random.split(jax.random.fold_in(key, index), 3)[2]
            found.append((own, averaging.RATE * 0.9**round, data, passing.up))
        old, new = (states[r].server for r in (round, round + 1))
        yield old, new, averaging.sizes(world, round), found


def compare(up, sent, *exact):
    """Compares a client's uplink with what was computed."""
    for name in exact:
        want, got = sent[name], up[name].values
        if isinstance(want, dict):
            got = {layer: got[layer]["kernel"] for layer in LAYERS}
        jax.tree.map(np.testing.assert_array_equal, got, want)
    rest = {n: {"kernel": None, "bias": sent["rest"][n]} for n in LAYERS}
    close((up["rest"].values, up["stats"].values), (rest, sent["stats"]), 2e-6)


def merges(old, new, moves, weights):
    """Checks the server's weighted mean."""
    kernels, biases = averaging.mean(moves, weights)
    for layer in LAYERS:
        change = {"kernel": kernels[layer], "bias": biases[layer]}
        want = jax.tree.map(np.add, old.params[layer], change)
        close(new.params[layer], want, 3e-6)


def level(bit, lowest):
    return np.where(np.asarray(bit) == 1, 1.0, lowest)


def uniform(key, tree):
    """Draws as for a tree of kernels: a key a leaf."""
    keys = jax.random.split(key, len(LAYERS))
    return {
        n: np.asarray(jax.random.uniform(k, tree[n].shape))
        for n, k in zip(LAYERS, keys, strict=True)
    }


class Client:
    """Momentum SGD on updates, biases and what a method adds, all by name."""

    def __init__(self, server, rate, **more):
        self.params, self.stats, self.rate = server.params, server.stats, rate
        self.values = {
            ("u", n): np.zeros_like(server.params[n]["kernel"]) for n in LAYERS
        }
        self.values |= {("b", n): np.asarray(server.params[n]["bias"]) for n in LAYERS}
        self.values |= {(k, n): np.float32(v) for k, v in more.items() for n in LAYERS}
        self.velocity = {name: np.zeros_like(v) for name, v in self.values.items()}

    def u(self):
        return {n: self.values["u", n] for n in LAYERS}

    def gradient(self, shown, data, rows):
        params = {}
        for n in LAYERS:
            kernel = self.params[n]["kernel"] + np.float32(shown[n])
            params[n] = {"kernel": kernel, "bias": self.values["b", n]}
        found = gradient(params, self.stats, data.x[rows], data.y[rows])
        grads, self.stats = jax.device_get(found)
        return grads

    def step(self, grads):
        for name, slope in grads.items():
            self.velocity[name] = averaging.MOMENTUM * self.velocity[name] + slope
            self.values[name] = self.values[name] - self.rate * self.velocity[name]

    def sent(self):
        rest = {n: self.values["b", n] - self.params[n]["bias"] for n in LAYERS}
        return {"rest": rest, "stats": self.stats}


def masked_client(server, data, key, rate, lowest):
    train_key, code_key = jax.random.split(key)
    seed_key, mask_key = jax.random.split(code_key)
    seed = jax.random.bits(seed_key, (), np.uint32)
    client, z = Client(server, rate), {}
    for place, n in enumerate(LAYERS):
        own = jax.random.fold_in(jax.random.key(seed), place)
        shape = server.params[n]["kernel"].shape
        drawn = (
            jax.random.uniform(own, shape, minval=-1.0)
            if lowest == 0
            else jax.random.normal(own, shape)
        )
        z[n] = np.float32(MRN["magnitude"]) * np.asarray(drawn)
    steps = list(averaging.valid(data))
    for step, rows in enumerate(steps):
        own = jax.random.fold_in(jax.random.fold_in(train_key, 0), step)
        first, second = jax.random.split(jax.random.split(own)[0])
        drawn, chosen = uniform(first, z), uniform(second, z)
        shown, u = {}, client.u()
        for n in LAYERS:
            masked = z[n] * mask(drawn[n], u[n] / z[n], lowest)
            clipped = z[n] * np.clip(u[n] / z[n], lowest, 1)
            shown[n] = np.where(chosen[n] < (step + 1) / len(steps), masked, clipped)
        grads = client.gradient(shown, data, rows)
        client.step(
            {("u", n): grads[n]["kernel"] for n in LAYERS}
            | {("b", n): grads[n]["bias"] for n in LAYERS}
        )
    drawn, u = uniform(mask_key, z), client.u()
    bits = {n: mask(drawn[n], u[n] / z[n], lowest) == 1 for n in LAYERS}
    return {"mask": bits, "seed": seed, "z": z} | client.sent()


def mask(drawn, q, lowest):
    """Returns the levels of a drawn mask: 0 and 1, or -1 and 1."""
    p = np.clip(q, 0, 1) if lowest == 0 else np.clip((q + 1) / 2, 0, 1)
    return level(drawn >= 1 - p, lowest)


def signed_client(server, data, key, rate):
    train_key, sign_key = jax.random.split(key)
    client, steps = Client(server, rate, a=0.0), list(averaging.valid(data))
    plain, first = max(int(BAT["warmup"] * len(steps)), 1), None
    low, high = BAT["alpha_range"]

    def uncut(n):
        return first[n] * np.exp(BAT["rho"] * client.values["a", n])

    def mean_size():
        return {n: np.abs(v).mean() for n, v in client.u().items()}

    for step, rows in enumerate(steps, 1):
        u, shown, s, alpha = client.u(), client.u(), {}, {}
        if step > plain:
            first = first or mean_size()
            own = jax.random.fold_in(jax.random.fold_in(train_key, 0), step - 1)
            drawn = uniform(jax.random.split(own)[0], u)
            for n in LAYERS:
                alpha[n] = np.clip(uncut(n), low, high)
                s[n] = mask(drawn[n], u[n] / alpha[n], -1.0)
                shown[n] = s[n] * alpha[n]
        grads = client.gradient(shown, data, rows)
        changes = {("b", n): grads[n]["bias"] for n in LAYERS}
        for n in LAYERS:
            g = grads[n]["kernel"]
            if step > plain:
                q = u[n] / alpha[n]
                slope = np.where(np.abs(q) <= 1, s[n] - q, np.sign(q))
                learnt = low <= uncut(n) <= high
                a = BAT["rho"] * alpha[n] * np.sum(g * slope) if learnt else 0.0
                changes["a", n], g = np.float32(a), np.where(np.abs(q) <= 1, g, 0)
            changes["u", n] = g
        client.step(changes)
    first = first or mean_size()
    alpha = {n: np.clip(uncut(n), low, high) for n in LAYERS}
    drawn, u = uniform(sign_key, client.u()), client.u()
    bits = {n: mask(drawn[n], u[n] / alpha[n], -1.0) == 1 for n in LAYERS}
    return {"signs": bits, "alpha": alpha, "steps": len(steps)} | client.sent()
