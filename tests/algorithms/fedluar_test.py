"""FedLUAR: rounds by hand, the draw of layers, what it equals, and what travels.

The clients' training is replaced by updates that a test gives.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sparsefl_jax.algorithms import fedluar
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.training import local
from tests.algorithms import rounds
from tests.reference.averaging_by_hand import mean
from tests.reference.by_hand import bare, bits, close, same, server_context

RNG = np.random.default_rng(0)
SHAPES = {  # kernels of 6, 12 and 4 entries, biases of 3 and 1
    "a": {"kernel": (2, 3), "bias": (3,)},
    "b": {"kernel": (3, 4)},
    "c": {"kernel": (4, 1), "bias": (1,)},
}
KERNELS, ENTRIES = ("a", "b", "c"), (6, 12, 4)
SIZES, ROUNDS, STATS = (1, 3, 2), 5, 2


def drawn():
    """Returns normal values of all parameters."""
    return {
        layer: {n: np.float32(RNG.normal(size=shape)) for n, shape in leaves.items()}
        for layer, leaves in SHAPES.items()
    }


START = drawn()
UPDATES = [  # [round][client]: a change and statistics
    [(drawn(), {"m": np.float32(RNG.normal(size=STATS))}) for _ in SIZES]
    for _ in range(ROUNDS)
]
# Two of three in turn, in the order of the tree; the first round collects all.
TURNS = [(), (0, 1), (2, 0), (1, 2), (0, 1)]
OPTIMIZER = local.make_optimizer()


pytestmark = pytest.mark.usefixtures("given_updates")


def make(**arguments):
    return fedluar(bare(START), OPTIMIZER, **arguments)


def play(method):
    _, stats = jax.tree.map(jnp.zeros_like, UPDATES[0][0])
    starts = [SparseModel(jax.tree.map(jnp.asarray, START), None, stats)] * 3
    data = lambda round, i: UPDATES[round][i]  # noqa: E731
    return rounds.play(method, starts, data, [range(3)] * ROUNDS, sizes=SIZES)


@pytest.mark.parametrize(
    "fill, weighting", [("recycle", "examples"), ("freeze", "uniform")]
)
def test_rounds_and_bits_by_hand(fill, weighting):
    """Every layer is recycled once and twice, and collected; biases have 4 entries."""
    method = make(layers=2, select="cyclic", fill=fill, weighting=weighting)
    weights = SIZES if weighting == "examples" else (1, 1, 1)
    w, u, s, age = jax.tree.map(np.float64, START), {}, {}, dict.fromkeys(KERNELS, 0)
    told = zip(TURNS, UPDATES, play(method), strict=True)
    for skipped, updates, (before, _, downs, ups, server, metrics) in told:
        skipped = {KERNELS[i] for i in skipped}
        change, stats = mean(updates, weights)
        for name in KERNELS:
            age[name] += 1
            if name not in skipped:
                age[name], u[name] = 0, change[name]["kernel"]
                norms = (np.linalg.norm(v) for v in (u[name], w[name]["kernel"]))
                s[name] = next(norms) / (next(norms) + 1e-6)
            if name not in skipped or fill == "recycle":
                w[name]["kernel"] = w[name]["kernel"] + u[name]
            if "bias" in w[name]:
                w[name]["bias"] = w[name]["bias"] + change[name]["bias"]
        close((server.params, server.stats), (w, stats))
        close(server.last, [u[name] for name in KERNELS])
        close(server.score, [s[name] for name in KERNELS])
        assert server.age.tolist() == [age[name] for name in KERNELS]
        pairs = zip(KERNELS, ENTRIES, strict=True)
        share = sum(entries for name, entries in pairs if name in skipped)
        close(metrics["recycled"], share / sum(ENTRIES))
        close(metrics["staleness"], np.mean([*age.values()]))
        for i, (delta, _) in enumerate(updates):
            down, up = downs[i], ups[i]
            assert bits(up) == 32 * (sum(ENTRIES) + 4 - share + STATS)
            assert bits(down) == 32 * (sum(ENTRIES) + 4 + STATS) + len(KERNELS)
            close(down["params"].values, before.params, atol=0)
            told = down["recycled"].values.tolist()
            assert told == [name in skipped for name in KERNELS]
            for name in KERNELS:
                mask = up["delta"].mask[name]
                assert np.all(mask["kernel"] == (name not in skipped))
                sent = delta[name]["kernel"] * (name not in skipped)
                close(up["delta"].values[name]["kernel"], sent, atol=0)
                if "bias" in mask:
                    assert mask["bias"].all()
                    close(up["delta"].values[name]["bias"], delta[name]["bias"], 0)


@pytest.mark.parametrize("noise", [0.0, 0.25])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_what_is_frozen_keeps_its_weights_bit_for_bit(noise, momentum):
    """Also under noise in all entries, as `private` adds it, and with momentum."""
    tx = optax.sgd(1.0, momentum=momentum)
    held, method = 0, make(layers=2, fill="freeze", server_optimizer=tx)

    def aggregate(key, ctx, server, total):
        delta = jax.tree.map(lambda v: v + noise, total["sum"]["delta"])
        total = total | {"sum": total["sum"] | {"delta": delta}}
        return method.aggregate(key, ctx, server, total)

    noised = method.replace(aggregate=aggregate)
    for before, *_, server, _ in play(noised):
        for name, frozen in zip(KERNELS, before.recycled, strict=True):
            if frozen:
                same(server.params[name]["kernel"], before.params[name]["kernel"])
                held += 1
    assert held == 2 * (ROUNDS - 1)


# --- The draw


def drawings(score, number, round=0, **arguments):
    """Returns `number` draws of R from scores that stay, [number, L]."""
    params = {
        f"l{i}": {"kernel": np.ones((1, 1), np.float32)} for i in range(len(score))
    }
    method = fedluar(bare(params), OPTIMIZER, **arguments)
    start = SparseModel(jax.tree.map(jnp.asarray, params), None, {})
    server = method.init(jax.random.key(0), start)
    server = server._replace(
        score=jnp.float32(score), recycled=jnp.ones(len(score), bool)
    )
    nothing = {"delta": jax.tree.map(jnp.zeros_like, start.params), "stats": {}}
    total = {"sum": nothing, "weight": jnp.float32(1)}

    def draw(key):
        return method.aggregate(key, server_context(round), server, total)[0].recycled

    keys = jax.random.split(jax.random.key(1), number)
    return np.asarray(jax.jit(jax.vmap(draw))(keys))


def test_layers_are_drawn_without_replacement_in_inverse_proportion_to_the_score():
    p, number = np.array([0.5, 0.25, 0.15, 0.07, 0.03]), 40_000
    found = drawings(3.0 / p, number, layers=2)
    assert (found.sum(1) == 2).all()
    # First i, or first another j and then i among those that are left.
    then = p[:, None] / (1 - p)[:, None] * p[None]
    exact = p + then.sum(0) - np.diag(then)
    np.testing.assert_allclose(
        exact, [0.8080, 0.5707, 0.3659, 0.1779, 0.0776], atol=5e-5
    )
    errors = np.sqrt(exact * (1 - exact) / number)
    assert (np.abs(found.mean(0) - exact) < 4 * errors).all()


def test_the_controls_do_not_read_the_score():
    score, number = [1e-9, 1.0, 1.0, 1e9], 20_000
    found = drawings(score, number, layers=3, select="uniform")
    assert (found.sum(1) == 3).all()
    assert (np.abs(found.mean(0) - 0.75) < 4 * np.sqrt(0.1875 / number)).all()
    for round, turn in ((0, (0, 1, 2)), (1, (3, 0, 1)), (2**31 - 1, (1, 2, 3))):
        found = drawings(score, 2, round=round, layers=3, select="cyclic")
        assert (found == np.isin(range(4), turn)).all()


def test_a_layer_that_does_not_move_is_recycled():
    found = drawings([1.0, 0.0, 1.0], 1000, layers=1)
    assert (found == [False, True, False]).all()
