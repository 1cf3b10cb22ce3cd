"""FedMRN: its operators, its identities, and what travels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.algorithms import compressed, fedmrn
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.sparsity import one_bit
from sparsefl_jax.testing import plain_loop, small_world
from sparsefl_jax.training import local
from sparsefl_jax.wire import compressors
from tests.reference import by_hand
from tests.reference.by_hand import batches, bits, context, linear_loss, model_of

MODEL, SGD = small_world.tiny_model(), local.make_optimizer(learning_rate=0.1)
ROW = np.array([1.0, -2.0, 0.5, 0.0], np.float32)
VECTOR = model_of(linear_loss, {"w": 1}, {"w": np.zeros(4)})  # its gradient is ROW


def one_client(method, *, steps=2, model=VECTOR, row=ROW):
    """Returns one client's uplink, metrics, and what it moves the server's model by."""
    params, stats = model.init(jax.random.key(0))
    server = method.init(jax.random.key(1), SparseModel(params, None, stats))
    ctx, data = context(size=3), batches(steps, row)

    @jax.jit
    def play(key):
        _, up, metrics = by_hand.one_client(method, server, ctx, data, key)
        new, _ = by_hand.merged(method, server, (ctx, up), key=key)
        return up, metrics, jax.tree.map(jnp.subtract, new.params, server.params)

    return play(jax.random.key(2))


def vector(**kwargs):
    return fedmrn(VECTOR, SGD, prunable=("w",), **kwargs)


def test_noise():
    tree = {"a": jnp.zeros(10_000), "b": None, "c": jnp.zeros((100, 100))}
    seed = jnp.uint32(7)
    uniform, normal, signs = (
        one_bit.noise(seed, tree, kind, 0.5) for kind in one_bit.NOISES
    )
    assert uniform["b"] is None and uniform["c"].shape == (100, 100)
    for z, deviation in ((uniform, 0.5 / 3**0.5), (normal, 0.5), (signs, 0.5)):
        assert float(z["a"].std()) == pytest.approx(deviation, rel=0.03)
        assert abs(float(z["a"].mean())) < 4 * deviation / 100
        assert not np.array_equal(z["a"], z["c"].reshape(-1))
    assert 0.499 < float(jnp.abs(uniform["a"]).max()) <= 0.5
    assert set(np.unique(signs["a"])) == {-0.5, 0.5}
    other = one_bit.noise(jnp.uint32(8), tree, "bernoulli", 0.5)
    assert 0.4 < np.mean(other["a"] != signs["a"]) < 0.6
    tiny = one_bit.noise(seed, tree, "gaussian", 1e-12)["a"]
    np.testing.assert_array_equal(tiny, np.float32(1e-8))


def test_bits_by_hand():
    up, *_ = one_client(fedmrn(MODEL, SGD), model=MODEL, row=np.ones(8))
    # 8 * 16 + 16 * 4 entries of kernels, 20 biases, 16 statistics
    assert bits(up) == 192 + 32 + 32 * (20 + 16)


def test_plain_training_is_compression_by_masked_noise():
    given = {"noise": "gaussian", "magnitude": 0.5, "mask": "signed"}
    ours = vector(progressive=False, **given)
    theirs = compressed(VECTOR, SGD, up=compressors.masked_noise(**given))
    (up, _, move), (sent, _, other) = map(one_client, (ours, theirs))
    np.testing.assert_array_equal(up["mask"].values["w"], sent["delta"].values["w"])
    np.testing.assert_array_equal(move["w"], other["w"])
    assert np.abs(move["w"]).min() > 0


@pytest.mark.slow
def test_seeds_are_of_a_client_and_a_round():
    world = small_world.make_world(fedmrn, {})
    passings = (p for round in range(4) for p in plain_loop.passings(world, round))
    assert len({int(p.up["seed"].values) for p in passings}) == 12


def test_an_update_beyond_the_noise_is_clipped():
    _, metrics, _ = one_client(vector(magnitude=1e-3, mask="signed"), steps=5)
    assert float(metrics["clipped"]) == 0.75  # a gradient of 0 leaves u at 0
    _, metrics, _ = one_client(vector(magnitude=1e3, mask="signed"), steps=5)
    assert float(metrics["clipped"]) == 0


def test_refuses():
    with pytest.raises(ValueError, match="index='bitmap', expected one of none, ent"):
        fedmrn(MODEL, SGD, index="bitmap")
