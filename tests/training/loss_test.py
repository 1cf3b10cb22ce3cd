"""A user's loss in training, records and evaluation, and invalid models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.training import local
from tests.networks import mostly_slow

CLASSES, CLIENTS, LABELS = 4, 3, ([0, 1], [1, 2], [0, 3])
SUMS = ("loss", "correct", "count")


def squared(logits, targets, weight):
    """Returns the squared distance from the labels or a teacher's outputs."""
    if targets.ndim < logits.ndim:
        targets = jax.nn.one_hot(targets, CLASSES)
    right = jnp.argmax(logits, -1) == jnp.argmax(targets, -1)
    losses = jnp.sum((logits - targets) ** 2, -1)
    values = dict(zip(SUMS, (losses, right, jnp.ones_like(weight)), strict=True))
    sums = {name: jnp.sum(jnp.where(weight > 0, v, 0.0)) for name, v in values.items()}
    return sums["loss"] / jnp.maximum(sums["count"], 1.0), sums


def errors(params, x, y, held=range(CLASSES)):
    """Returns how far logits are from the labels; those of absent classes are 0."""
    hidden = np.maximum(x @ params["fc1"]["kernel"] + params["fc1"]["bias"], 0)
    logits = hidden @ params["fc2"]["kernel"] + params["fc2"]["bias"]
    return logits * np.isin(np.arange(CLASSES), held) - np.eye(CLASSES)[y]


def by_hand(*given):
    """Returns the losses of single samples."""
    return (errors(*given) ** 2).sum(1)


@pytest.fixture(scope="module")
def world():
    """Returns clients of 4, 6 and 10 samples of two classes, and a network."""
    rng, sizes = np.random.default_rng(0), (4, 6, 10)
    y = np.concatenate([np.resize(c, n) for c, n in zip(LABELS, sizes, strict=True)])
    x = rng.normal(size=(20, 8)).astype(np.float32)
    user = {"users": np.repeat(range(CLIENTS), sizes)}
    user["users_test"] = user["users"]
    data = sfl.from_arrays(x, y, x_test=-x, y_test=y, partition="natural", **user)
    model = sfl.models.build("mlp", CLASSES, (8,), widths=(6,))
    return data, model.with_loss(squared)


METHODS = {
    "fedavg": {},
    "heterofl": {},
    "fjord": {"widths": (0.5, 1.0), "distill": True},
    "spafl": {"alpha": 0.1},
}


@mostly_slow(METHODS, quick=("fedavg",))
def test_a_loss_of_ones_own_is_trained_recorded_and_evaluated(world, name):
    """At rate 0 weights stay, and every sample is seen once."""
    data, model = world
    optimizer = sfl.training.make_optimizer(learning_rate=0.0)
    method = sfl.ALGORITHMS[name](model, optimizer, **METHODS[name])
    stage = sfl.Stage(method, 1, CLIENTS, batch_size=4)
    run = sfl.run(jax.random.key(0), [stage], model, data)
    trained, evaluated = run.metrics
    params = jax.tree.map(np.float64, next(iter(run.models.values())).params)
    losses = []
    for labels, rows, size in zip(LABELS, *data.train, strict=True):
        x, y = np.float64(data.x[rows[:size]]), data.y[rows[:size]]
        held = labels if name == "heterofl" else range(CLASSES)
        losses += by_hand(params, x, y, held).tolist()
    assert len(losses) == 20
    assert trained["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    tested = by_hand(params, np.float64(data.x_test), data.y_test)
    if method.personalize is None:
        want = tested.mean()
    else:  # every client's own samples, the mean over clients
        index, size = data.test
        want = np.mean([tested[i[:n]].mean() for i, n in zip(index, size, strict=True)])
    headline = next(iter(evaluated["models"].values()))
    assert headline["loss"] == pytest.approx(want, rel=1e-5)


def test_a_step_follows_the_gradient_of_that_loss(world):
    data, model = world
    params, stats = jax.device_get(model.init(jax.random.key(1)))
    x, y = np.float64(data.x[:4]), data.y[:4]
    grads, _ = jax.grad(local.objective(model), 1, has_aux=True)(
        None, params, stats, data.x[:4], data.y[:4], jnp.array([1.0, 1, 1, 0])
    )
    want = 2 * errors(params, x, y)[:3].mean(0)
    np.testing.assert_allclose(grads["fc2"]["bias"], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value, names", [(0.0, ("loss",)), ([1.0, 2.0], SUMS)])
def test_what_a_loss_must_return_is_said_in_one_line(world, value, names):
    data, model = world

    def loss(logits, targets, weight):
        return jnp.array(value), dict.fromkeys(names, jnp.float32(0))

    model = model.with_loss(loss)
    stage = sfl.Stage(sfl.fedavg(model, sfl.training.make_optimizer()), 1, CLIENTS)
    with pytest.raises(ValueError, match=r"^model.loss returned shapes .*, expected a"):
        sfl.run(jax.random.key(0), [stage], model, data)
