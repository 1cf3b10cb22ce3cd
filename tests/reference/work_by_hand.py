"""What every method's clients multiply, in NumPy, from masks and numbers of samples."""

from collections import defaultdict
from functools import partial

import jax
import numpy as np
import pytest

from sparsefl_jax.testing import plain_loop, small_world
from sparsefl_jax.wire.packets import unpack_model

KERNELS = (
    small_world.FEATURES * small_world.HIDDEN + small_world.HIDDEN * small_world.CLASSES
)
SORTING = KERNELS * np.log2(KERNELS + 1)
GRID = (0.3, 0.4, 0.5)  # FjORD's widths in the contract test
BATCH = 4


def multiplies(world, expected):
    """`Work` of every client in every round, pass by pass, leaf by leaf.

    Args:
      world: whose method is checked.
      expected: `(world, round, index, passing) -> (forward, input_grad, weight_grad,
        extra)`, trees of sums over samples.
    """
    for round, cohort in enumerate(world.cohorts.tolist()):
        passings = plain_loop.passings(world, round)
        for index, passing in zip(cohort, passings, strict=True):
            work, count = passing.metrics["work"], passing.metrics["count"]
            passes = expected(world, round, index, passing)
            same(work, passes)
            # A leaf that is never pruned, if there is one, takes part in every pass.
            samples = max(float(v) for v in (count, *jax.tree.leaves(passes[0])))
            assert float(work.samples) == pytest.approx(samples, rel=1e-5)


def same(work, expected):
    """Each pass and the rest, in float32."""
    passes = work.forward, work.input_grad, work.weight_grad, work.extra
    for got, want in zip(passes, expected, strict=True):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, want
        )


def layers(fc1, fc2, hidden=1.0):
    """A number for each leaf; the biases of the last layer are never pruned."""
    return {"fc1": {"kernel": fc1, "bias": hidden}, "fc2": {"kernel": fc2, "bias": 1.0}}


def densities(mask):
    return jax.tree.map(lambda m: np.mean(np.asarray(m, np.float64)), mask)


def times(number, tree):
    return jax.tree.map(lambda share: number * share, tree)


def plus(*trees):
    return jax.tree.map(lambda *v: sum(v), *trees)


def thrice(tree, extra=0.0):
    return tree, tree, tree, extra


def dense(world, round, index, passing):
    return thrice(times(small_world.SIZES[index], layers(1.0, 1.0)))


def twice(world, round, index, passing):
    """Ditto's: the client's own model too."""
    return thrice(times(2 * small_world.SIZES[index], layers(1.0, 1.0)))


def tuned(world, round, index, passing):
    """Within the mask of the model that was handed over."""
    mask = small_world.path(world)[0][round].server.mask
    return thrice(times(small_world.SIZES[index], densities(mask)))


def received(world, round, index, passing):
    """Frozen within the mask that came down."""
    return thrice(times(small_world.SIZES[index], densities(_mask(passing.down))))


def _mask(message):
    if "dense" in message:
        return unpack_model(message).mask
    return message["weights" if "weights" in message else "params"].mask


def dense_gradients(world, round, index, passing):
    """PruneFL's: those of pruned weights are needed too."""
    sparse, _, _, extra = received(world, round, index, passing)
    return sparse, sparse, dense(world, round, index, passing)[2], extra


def screened(world, round, index, passing, due, last=False):
    """Frozen, and in some rounds the dense gradient of one batch and one choice."""
    size = small_world.SIZES[index]
    batch = size - (-(-size // BATCH) - 1) * BATCH if last else min(size, BATCH)
    if round not in due:
        return received(world, round, index, passing)
    mask = densities(_before(world, round, index, passing))
    sparse, whole = times(size + batch, mask), times(batch, layers(1.0, 1.0))
    return sparse, sparse, plus(times(size, mask), whole), SORTING


def operated(world, round, index, passing, every=1):
    """One surgery after the step with index floor(n / 2), where the round has one."""
    size = small_world.SIZES[index]
    steps = -(-size // BATCH)
    before = min((steps // 2 + 1) * BATCH, size)
    if round % every:
        return received(world, round, index, passing)
    work = plus(
        times(before, densities(_before(world, round, index, passing))),
        times(size - before, _after(passing)),
    )
    return thrice(work, SORTING)


def _before(world, round, index, passing):
    """NST's own mask, that of its client's last round; else the one received."""
    row = plain_loop.inputs(world, small_world.path(world)[0][round], round, index)[3]
    return row if jax.tree.leaves(row) else _mask(passing.down)


def _after(passing):
    if "density" in passing.up:  # stage 1 sends nothing else
        return layers(*passing.up["density"].values.tolist())
    return densities(_mask(passing.up))


def thresholds(world, round, index, passing):
    """SpaFL's: at the mask that training ends with; five FLOPs a weight and step."""
    params, tau = passing.client.trained
    alive = {}
    for layer in ("fc1", "fc2"):
        height, level = np.abs(params[layer]["kernel"]).mean(0), tau[f"{layer}/kernel"]
        alive[layer] = np.mean(height > level)
        if alive[layer] <= 0.01:
            alive[layer] = np.mean(height > 0)
    steps = -(-small_world.SIZES[index] // BATCH)
    work = times(small_world.SIZES[index], layers(alive["fc1"], alive["fc2"]))
    return thrice(work, 5 * KERNELS * steps)


def sliced(world, round, index, passing):
    """HeteroFL's: the first units of the hidden layer, as many as the budget allows."""
    return thrice(times(small_world.SIZES[index], _width(small_world.BUDGETS[index])))


def _width(rate):
    share = np.ceil(rate * small_world.HIDDEN) / small_world.HIDDEN
    return layers(share, share, share)


def drawn(world, round, index, passing, draw="batch", distill=False):
    """FjORD's: every batch at its width, and at the client's own where that teaches."""
    state = small_world.path(world)[0][round]
    key, *_, info, data = plain_loop.inputs(world, state, round, index)
    key = jax.random.split(jax.random.fold_in(key, info.index), 3)[2]
    largest = GRID.index(small_world.BUDGETS[index])
    work = []
    for step, weight in enumerate(data.weight[0]):
        own = jax.random.fold_in(jax.random.fold_in(key, 0), step)
        own = jax.random.split(own)[0]
        place = int(jax.random.randint(own, (), 0, largest + 1, np.int32))
        if draw == "round":
            place = int(passing.down["width"].values)
        work.append(times(weight.sum(), _width(GRID[place])))
        if distill:
            work.append(times(weight.sum(), _width(GRID[largest])))
    return thrice(plus(*work))


def scored(world, round, index, passing, passes, extra=SORTING):
    """SNIP's and GraSP's: one batch, dense, and the order of all weights."""
    one = min(BATCH, small_world.SIZES[index])
    return thrice(times(passes * one, layers(1.0, 1.0)), extra)


# By row of the contract test: what clients multiply where it is not everything, as
# Complement Sparsification's do after one step. `ELSEWHERE` have it with references.
OTHERS = {
    "flasc_masked": received,
    **dict.fromkeys(("pdst", "spdst", "spdst_keep", "hetero_spdst", "pqsu"), received),
    **dict.fromkeys(
        ("fedsparsify_global", "fedsparsify_adam", "fedsparsify_local"), received
    ),
    **dict.fromkeys(("fedsparsify_muon", "spdst_muon"), received),
    **dict.fromkeys(("sensitivity", "jmwst", "nst"), operated),
    **dict.fromkeys(("hetero_jmwst", "hetero_jmwst_frozen"), operated),
    **dict.fromkeys(("spafl", "local_only", "spafl_seed", "local_sent"), thresholds),
    **{"jmwst_2": partial(operated, every=2), "ditto": twice, "finetune": tuned},
    **dict.fromkeys(("magnitude", "magnitude_layer"), received),
    "prunefl": dense_gradients,
    **dict.fromkeys(("heterofl", "fedrolex", "fedrolex_masked"), sliced),
    **dict.fromkeys(("fiarse", "fiarse_masked"), received),
    "fjord": drawn,
    "fjord_round": partial(drawn, draw="round"),
    "fjord_distill": partial(drawn, distill=True),
    "snip": partial(scored, passes=1),
    "grasp": partial(scored, passes=3),
    **dict.fromkeys(("ssfl", "ssfl_seed"), partial(scored, passes=1, extra=0.0)),
    "feddst": partial(screened, due=(1, 3), last=True),
    **dict.fromkeys(("fedspa", "fedspa_own"), received),
    "fedspa_dst": partial(screened, due=range(4)),
    **dict.fromkeys(
        ("fedrts", "fedtiny", "fedmef", "fedmef_aggregate"), partial(screened, due=(2,))
    ),
}
WORK = defaultdict(lambda: dense, OTHERS)
ELSEWHERE = {
    *("fedpm", "fedpm_initial", "prunefl_initial", "sparsyfed"),
    *("zerofl_weights", "zerofl_diff_on_top", "zerofl_top_of_diff"),
}
