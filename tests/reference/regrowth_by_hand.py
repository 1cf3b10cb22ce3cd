"""Pruning and growth of layers in NumPy, and clients that do it in the small world."""

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.sparsity import masks
from sparsefl_jax.testing import small_world
from sparsefl_jax.wire.messages import unpack_model
from tests.reference.averaging_by_hand import RATE, clients, local_sgd, sizes, valid
from tests.reference.averaging_by_hand import mean as mean_of
from tests.reference.by_hand import KEY, close, gradient, linear_loss, model_of

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


def trained(model, data, round):
    """Returns the parameters and statistics after a client's round."""
    return local_sgd(model, data, RATE * 0.9**round)[:2]


def batch_gradient(params, stats, x, y):
    """Returns the gradient of a batch in training, and its magnitude."""
    grads = jax.device_get(gradient(params, stats, x, y)[0])
    return grads, jax.tree.map(np.abs, grads)


def halved(factory, weights, optimizer, key=KEY, **kwargs):
    """Returns a method on weights of which half are alive, and its first server."""
    model = model_of(linear_loss, {"w": 1}, {"w": np.zeros(len(weights))})
    options = {"density": 0.5, "allocation": "uniform", "prunable": ("w",)} | kwargs
    method, weights = factory(model, optimizer, **options), {"w": jnp.float32(weights)}
    return method, method.init(key, masks.dense(weights, {}))


def counts(mask):
    return {name: int(np.sum(mask[name]["kernel"])) for name in LAYERS}


@jax.jit
def evaluated(params, stats, x, y):
    """Returns the gradient of a batch's mean cross-entropy as in an evaluation."""

    def loss(params):
        logits, _ = small_world.tiny_model().apply(params, stats, x, train=False)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1)
        return -jnp.mean(chosen)

    return jax.grad(loss)(params)


def first_batch(data):
    rows = next(valid(data))
    return data.x[rows], data.y[rows]


# ERK at d = .5: of layers with 24 + 20 of 44 raw entries, 96 (24 / 44) and 96 (20 / 44)
# are alive: 52.4 and 43.6.
ERK = {"fc1": 52, "fc2": 43}


def adds_changes(world, shared=True):
    """FedSpa: the server adds the uniform mean of changes within the clients' masks."""
    states, _ = small_world.path(world)
    seen = {}
    for round in range(len(world.cohorts)):
        dense, changes = states[round].server.model, []
        for index, data, passing in clients(world, round):
            mask = unpack_model(passing.down).mask
            assert passing.down["weights"].index == "none"
            seen.setdefault(index, mask)
            close(mask, seen[index])
            assert counts(mask) == ERK
            model = SparseModel(masks.apply(dense.params, mask), mask, dense.stats)
            params, stats = trained(model, data, round)
            change = jax.tree.map(np.subtract, params, model.params)
            got = unpack_model(passing.up)
            close((got.mask, got.params, got.stats), (mask, change, stats))
            assert not passing.up["weights"].fresh
            changes.append((change, stats))
        mean = mean_of(changes)
        new = states[round + 1].server.model
        close(new.params, jax.tree.map(np.add, dense.params, mean[0]))
        close(new.stats, mean[1])
    kernels = [mask["fc1"]["kernel"] for mask in seen.values()]
    assert all((k == kernels[0]).all() for k in kernels) == shared
    deployed = world.algorithm.deploy(world.key, states[-1].server)["global"]
    assert counts(deployed.mask) == (ERK if shared else {"fc1": 128, "fc2": 64})


TINY = {"density": 0.5, "adjust_every": 2, "adjust_until": 4}
# .2 (1 + cos(pi t / 4)) of them are in doubt: .4, .3414, .2 and .0586, rounded down.
DOUBT = {
    0: {"fc1": 20, "fc2": 17},
    1: {"fc1": 17, "fc2": 14},
    2: {"fc1": 10, "fc2": 8},
    3: {"fc1": 3, "fc2": 2},
}


def grows_by_gradient(world):
    """FedTiny: four rounds; round 2 grows by the mean of the named gradients."""
    states, logs = small_world.path(world)
    for round in range(len(world.cohorts)):
        old, new, sent = states[round].server, states[round + 1].server, []
        assert counts(old.model.mask) == ERK
        for _, data, passing in clients(world, round):
            params, stats = trained(old.model, data, round)
            got, grown = unpack_model(passing.up), passing.up["grown"]
            close((got.mask, got.params, got.stats), (old.model.mask, params, stats))
            assert grown.sent == (round == 2) and not passing.up["weights"].fresh
            grads, steep = batch_gradient(params, stats, *first_batch(data))
            named = {}
            for n in LAYERS:
                holes = ~old.model.mask[n]["kernel"]
                mask = best(steep[n]["kernel"], DOUBT[round][n], holes)
                named[n] = {"kernel": np.where(mask, grads[n]["kernel"], 0)}
                if round == 2:
                    np.testing.assert_array_equal(grown.mask[n]["kernel"], mask)
                    close(grown.values[n]["kernel"], named[n]["kernel"])
            sent.append((params, named))
        mean, slope = mean_of(sent, sizes(world, round))
        want = old.model.mask
        if round == 2:
            kept = {n: ERK[n] - DOUBT[round][n] for n in LAYERS}
            slope = jax.tree.map(np.abs, slope)
            _, want = swapped(mean, old.model.mask, slope, kept, ERK)
            assert logs[round].mismatch > 0
        close(new.model.mask, want)
        assert new.changed_at == (3 if round >= 2 else 0)
        close(new.model.params, masks.apply(mean, new.model.mask))


def scores_of_all(world):
    """SSFL: the 96 largest of the mean scores, weighted by samples; weights stay."""
    states, _ = small_world.path(world)
    for round in range(len(world.cohorts)):
        start, total = states[round].server, 0
        for index, data, passing in clients(world, round):
            grads = evaluated(start.params, start.stats, *first_batch(data))
            scores = [np.abs(start.params[n]["kernel"] * grads[n]["kernel"])
                      for n in LAYERS]  # fmt: skip
            sent = passing.up["scores"].values
            close([sent[n]["kernel"] for n in LAYERS], scores)
            flat = np.concatenate([s.ravel() for s in scores])
            total += small_world.SIZES[index] * flat
        mask = states[round + 1].server.mask
        kept = np.concatenate([np.asarray(mask[n]["kernel"]).ravel() for n in LAYERS])
        np.testing.assert_array_equal(kept, total >= np.sort(total)[-96])
        close(states[round + 1].server.params, world.model.params, atol=0)
