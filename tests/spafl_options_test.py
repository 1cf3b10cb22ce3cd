"""SpaFL's options: two clients, two rounds, against the formulas in NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.algorithms import spafl
from sparsefl_jax.algorithms.spafl.client_training import VARIANTS, Variant
from sparsefl_jax.core.types import SparseModel
from tests.by_hand import batches, context, model_of

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


def linear(key, params, stats, x, y, weight):
    """A loss whose gradient is `slopes()` everywhere."""
    del key, x, y
    zero = jnp.zeros((), jnp.float32)
    sums = {"loss": zero, "correct": zero, "count": jnp.sum(weight)}
    return jnp.sum(jnp.float32(slopes()) * params["w"]), (stats, sums)


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
        model = model_of(linear, {"w": 1})
        settings = {"alpha": ALPHA, "prunable": ("w",), "variant": "paper"}
        method = spafl(model, optimizer, **settings, **options)
    data = batches(STEPS, [0.0])
    key, told = jax.random.key(0), []
    models = [
        SparseModel({"w": jnp.float32(weights(i))}, {"w": jnp.ones(SHAPE, bool)}, {})
        for i in (0, 1)
    ]
    server = method.init(key, models[0])
    clients = [
        method.first_state(key, method.init(key, m), context().client) for m in models
    ]
    update = jax.jit(method.update)
    for round in range(2):
        ctx, sums = context(round), []
        down = method.broadcast(key, ctx, server)
        for i in (0, 1):
            up, clients[i], _ = update(key, ctx, down, clients[i], data)
            sums.append(method.contribute(ctx, up))
        total = jax.tree.map(jnp.add, *sums)
        server, _ = method.aggregate(key, ctx.round, server, total)
        told += [c.trained.params["w"] for c in clients]
        told += [server.thresholds["w"], server.delta["w"]]
    return told


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_an_option_does_what_the_formulas_say(options):
    told = federation(**DEFAULTS | options)
    for got, want in zip(told, federation_by_hand(DEFAULTS | options), strict=True):
        np.testing.assert_allclose(got, want, atol=2e-5)
    if options:  # it matters here
        plain = federation(**DEFAULTS)
        far = [np.abs(a - b).max() for a, b in zip(told, plain, strict=True)]
        assert max(far) > 1e-3
