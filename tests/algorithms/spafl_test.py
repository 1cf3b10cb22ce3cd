"""SpaFL: the estimator's gradients, resets, options by hand, and what travels."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.algorithms import local_only, spafl
from sparsefl_jax.algorithms.spafl import (
    VARIANTS,
    Variant,
    filter_masks,
    is_dead,
    prune,
)
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.sparsity import masks
from sparsefl_jax.wire import packets
from sparsefl_jax.wire.charges import message_bits
from tests.algorithms import rounds
from tests.reference.by_hand import bare, batches, context, mean_of, model_of
from tests.silent import values_only_bits


def test_a_weight_of_zero_has_no_slope_through_its_importance():
    """Of filter 0 (importance .15) w = 0 and .3 have g = 2 and 1: through it 0.3 / 2
    for the 0.3 alone; the pruned filter 1 passes nothing but that, 0 at a zero.
    """
    kernel = jnp.array([[0.0, 0.0], [0.3, -0.2]])
    g = jnp.array([[2.0, 5.0], [1.0, 4.0]])
    found = jax.grad(
        lambda k: jnp.sum(g * prune({"w": k}, {"w": jnp.array([0.1, 0.3])})["w"])
    )(kernel)
    want = [[2.0, 0.0], [1.0 + 0.3 / 2, 0.8 / 2]]  # -1 / 2 times 4 * -0.2
    np.testing.assert_allclose(found, want, atol=1e-6)


@pytest.mark.parametrize(("alive", "others", "kept"), [(1, 2.0, 200), (5, 1.0, 5)])
def test_a_dead_layer_is_revived_and_a_threshold_equal_to_importance_prunes(
    alive, others, kept
):
    threshold = jnp.full(200, others).at[:alive].set(0.5)
    found = filter_masks({"w": jnp.ones((2, 200))}, {"w": threshold})
    assert int(found["w"][0].sum()) == kept


@pytest.mark.parametrize("filters", [100, 500])
def test_one_percent_of_the_filters_is_dead_and_one_filter_more_is_not(filters):
    """A mean in float32 took 5 of 500 for more than 0.01, which PyTorch does not."""
    kernel, most = jnp.ones((2, filters)), filters // 100
    find_dead = jax.jit(is_dead)
    for alive in (0, most, most + 1):
        threshold = jnp.full(filters, 2.0).at[:alive].set(0.5)
        assert bool(find_dead(kernel, threshold)) == (alive <= most)


@pytest.mark.parametrize("variant", ["paper", "release_fashion_mnist"])
@pytest.mark.parametrize("factory", [spafl, local_only])
def test_a_layer_that_died_is_alive_when_the_next_round_begins(factory, variant):
    """The official code evaluates every client in between, which revives it there."""

    optimizer = sfl.training.make_optimizer(learning_rate=0.5)
    settings = {"prunable": ("w",), "variant": variant, "initial": "sent"}
    total = mean_of(lambda params, x: jnp.sum(params["w"]))
    method = factory(model_of(total, {"w": 1}), optimizer, **settings)
    model = SparseModel({"w": jnp.full((4, 3), 5.0)}, {"w": jnp.ones((4, 3), bool)}, {})
    ctx, key, data = context(1, 0), jax.random.key(0), batches(1, [1.0])
    server = method.init(key, model)
    if factory is spafl:
        server = server._replace(thresholds={"w": jnp.full(3, 0.5)})
    down = method.broadcast(key, ctx, server)
    fresh = method.first_state(key, server, ctx.client)
    dead = fresh.trained._replace(thresholds={"w": jnp.full(3, 9.0)})
    after = [
        method.update(key, ctx, down, client, data)[1].trained
        for client in (fresh, fresh._replace(trained=dead))
    ]
    assert not np.array_equal(after[0].params["w"], model.params["w"])
    jax.tree.map(np.testing.assert_array_equal, *after)


def test_eq_13_needs_as_many_words_as_there_are_thresholds():
    """They are charged, or assumed to be free; the paper's bits are a view of both."""
    kernel = {"w": jnp.ones((4, 3)), "b": jnp.ones(3)}
    model, bits = SparseModel(kernel, masks.full(kernel), {}), {}
    for charged in (False, True):
        settings = {} if charged else {"charge_delta": False}
        method = spafl(bare(kernel), None, prunable=("w",), **settings)
        down = method.broadcast(None, None, method.init(None, model))
        layout, count = packets.layout(down), packets.count(down)
        bits[charged] = int(message_bits(layout, count).total)
        assert bool(layout["delta"].assumed) != charged
        assert values_only_bits(layout, count, ("thresholds",)) == 3 * 32
    assert bits == {False: 3 * 32, True: 2 * 3 * 32}


RATE, MOMENTUM, ALPHA, STEPS = 0.1, 0.9, 0.25, 4
SHAPE = (2, 2, 2, 3)  # a convolution of three filters with eight inputs each
DEFAULTS = dict(
    extract=True,
    divisor="inputs",
    ste="identity",
    reset="same",
    warmup=False,
    clamp=False,
    thresholds_only=False,
    keep_optimizer=False,
    decay=0.0,
)
IN_VARIANT = ("divisor", "ste", "reset", "warmup")
OPTIONS = [  # each once, in as few programs
    {},
    {"extract": False, "clamp": True},
    {"divisor": "kernel", "reset": "previous"},
    {"ste": "window", "warmup": True, "keep_optimizer": True},
    {"thresholds_only": True, "decay": 0.1},
]


def slopes():
    """The gradient of the loss to a pruned weight, a constant."""
    return np.random.default_rng(1).normal(0, 0.1, SHAPE)


def weights(client):
    """Importances from 0.4 to above 2; one client's filters die, the other's not."""
    w = np.random.default_rng(2 + client).normal(0, 1, SHAPE)
    return w * (np.array([0.1, 0.2, 0.3]) if client else np.array([0.5, 1.0, 2.0]))


def by_hand(w, tau, velocity, round, options):
    """One client's round; what it ends with."""
    alpha = ALPHA
    if options["warmup"]:
        alpha /= 1 + np.exp(5 - 10 * round)
    if velocity is None or not options["keep_optimizer"]:
        velocity = np.zeros(SHAPE), np.zeros(3)
    for _ in range(STEPS):
        importance = np.abs(w).mean((0, 1, 2))
        dead = not (importance > tau).any()
        revive = dead and options["reset"] == "same"
        used = np.zeros(3) if revive else tau
        distance = importance - used
        through = (slopes() * w).sum((0, 1, 2))
        if options["ste"] == "window":
            through = np.where(np.abs(distance) > 1, through, 0)
        for_w = (distance > 0) * slopes() + np.sign(w) * through / 8
        for_w += options["decay"] * w
        for_tau = -through - alpha * np.exp(-used) + options["decay"] * tau
        if options["thresholds_only"]:
            for_w = 0 * w
        moved = MOMENTUM * velocity[0] + for_w, MOMENTUM * velocity[1] + for_tau
        velocity = moved
        w, tau = w - RATE * velocity[0], used - RATE * velocity[1]
        if dead and not revive:
            tau = np.zeros(3)
        if options["clamp"]:
            w, tau = np.clip(w, -1, 1), np.clip(tau, 0, 1)
    return w, tau, velocity


def federation_by_hand(options):
    """Both clients' weights after each round, the global thresholds, how they moved."""
    clients, tau, delta = [(weights(i), None) for i in (0, 1)], np.zeros(3), np.zeros(3)
    told = []
    n = 8 if options["divisor"] == "inputs" else 4
    for round in range(2):
        ended = []
        for w, velocity in clients:
            if options["extract"] and not options["thresholds_only"]:
                w = w - delta * np.sign(w.sum((0, 1, 2))) / n
            ended.append(by_hand(w, tau, velocity, round, options))
        new = np.mean([tau for _, tau, _ in ended], 0)
        tau, delta = new, new - tau
        clients = [(w, velocity) for w, _, velocity in ended]
        told += [*(w for w, _ in clients), tau, delta]
    return told


@functools.cache
def federation(**options):
    """The same by the method, its variant made of what the options say."""
    decay = options.pop("decay")
    variant = Variant(**{name: options.pop(name) for name in IN_VARIANT})
    optimizer = sfl.training.make_optimizer(
        "sgd", learning_rate=RATE, momentum=MOMENTUM, weight_decay=decay
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(VARIANTS, "paper", variant)
        sloping = mean_of(lambda p, x: jnp.sum(jnp.float32(slopes()) * p["w"]))
        model = model_of(sloping, {"w": 1})
        settings = {"alpha": ALPHA, "prunable": ("w",), "variant": "paper"}
        method = spafl(model, optimizer, **settings, **options)
    starts = [
        SparseModel({"w": jnp.float32(weights(i))}, {"w": jnp.ones(SHAPE, bool)}, {})
        for i in (0, 1)
    ]
    data, told = batches(STEPS, [0.0]), []
    played = rounds.play(method, starts, lambda round, i: data, [(0, 1)] * 2)
    for _, clients, *_, server, _ in played:
        told += [c.trained.params["w"] for c in clients]
        told += [server.thresholds["w"], server.delta["w"]]
    return told


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_an_option_does_what_the_formulas_say(options):
    told = federation(**DEFAULTS | options)
    for got, want in zip(told, federation_by_hand(DEFAULTS | options), strict=True):
        np.testing.assert_allclose(got, want, atol=2e-5)
