"""Compressors by hand, and the laws that each of them keeps."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.wire import compressors, packets
from sparsefl_jax.wire.charges import message_bits
from sparsefl_jax.wire.positions import write_gaps
from tests.reference.averaging_by_hand import flat

RNG = np.random.default_rng(0)
UPDATE = {
    "a": jnp.asarray(RNG.normal(size=(7, 5)), jnp.float32),
    "b": jnp.asarray(RNG.normal(size=11), jnp.float32),
}
KEY = jax.random.key(1)
BUILT = {  # with other arguments than their defaults
    "topk": {"density": 0.1},
    "randomk": {"density": 0.1},
    "qsgd": {"bits": 3},
    "sign": {},
    "majority": {},
    "stc": {"density": 0.1, "index": "golomb"},
    "none": {},
}


def sent(name, update=UPDATE, **given):
    """Returns the message of an update and what it decodes to."""
    coder = compressors.build(name, BUILT[name] | given)
    message = jax.jit(coder.encode)(KEY, update)
    return message, jax.jit(coder.decode)(message)


def charged(message):
    bits = message_bits(packets.layout(message), packets.count(message))
    return int(bits.values), int(bits.positions)


def test_top_k_of_each_leaf_and_the_first_of_equal_ones():
    """Over all leaves, `compressed_test.top` has it in NumPy, as signs and STC."""
    _, update = sent("topk", scope="leaf")
    for name, k in (("a", 4), ("b", 2)):  # ceil(3.5) and ceil(1.1)
        x, q = flat(UPDATE[name]), flat(update[name])
        kept = np.argsort(-np.abs(x))[:k]
        np.testing.assert_array_equal(np.flatnonzero(q), np.sort(kept))
        np.testing.assert_array_equal(q[kept], x[kept])
    ties, _ = sent("topk", {"w": jnp.array([1.0, -2.0, 2.0, 2.0])}, density=0.5)
    assert ties["delta"].mask["w"].tolist() == [False, True, True, False]


def test_top_k_with_few_bits_by_hand():
    """Four of six travel, with magnitudes 1 to 3 in steps of 2 or of 2/3.

    2.2 is nearer 3 than 1; 1.5 is nearer 5/3. Codes are those of two's complement: the
    magnitude's place, or -1 minus it below 0. Positions of `coo` take 3 + 4 * 3 bits.
    """
    update = {"w": jnp.array([1.0, -3.0, 0.0, 2.2, 0.5, -1.5])}
    for bits, codes, values in (
        (2, [0, -2, 0, 1, 0, -1], [1, -3, 0, 3, 0, -1]),
        (3, [0, -4, 0, 2, 0, -2], [1, -3, 0, 7 / 3, 0, -5 / 3]),
    ):
        given = {"density": 0.6, "bits": bits, "index": "coo"}
        message, back = sent("topk", update, **given)
        assert message["delta"].values["w"].tolist() == codes
        np.testing.assert_allclose(back["w"], values, rtol=1e-5)
        assert charged(message) == (4 * bits + 64, 3 + 4 * 3)
    given |= {"density": 1.0, "rounding": "unbiased"}
    message, back = sent("topk", {"v": jnp.zeros(6)} | update, **given)
    assert charged(message) == (5 * 3 + 2 * 64, 2 * 3 + 5 * 3)  # no zero travels
    assert not back["v"].any() and back["w"][2] == 0


@pytest.mark.parametrize("name", ["topk", "randomk", "stc"])
def test_the_least_share_is_one_entry(name):
    message, decoded = sent(name, {"a": jnp.full(6, 2.0)}, density=1e-9)
    assert int(message["delta"].mask["a"].sum()) == 1
    assert np.sort(decoded["a"]).tolist() == [0, 0, 0, 0, 0, 2]


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("qsgd", {}),
        ("randomk", {"unbiased": True}),
        ("topk", {"density": 1.0, "bits": 3, "rounding": "unbiased"}),
    ],
)
def test_the_mean_over_keys_is_the_update(name, given):
    coder, update = compressors.build(name, BUILT[name] | given), UPDATE["b"]

    def draw(key):
        return coder.decode(coder.encode(key, {"w": update}))["w"]

    drawn = np.float64(jax.jit(jax.vmap(draw))(jax.random.split(KEY, 4096)))
    error = np.abs(drawn.mean(0) - np.asarray(update))
    # A step between magnitudes of 'topk' is rounded to 17 binary digits.
    assert (error <= 4 * drawn.std(0) / 64 + 1e-5).all()
    assert (drawn.std(0) > 0).any()
    if name == "qsgd":  # s = 3 levels, n = 11
        spread = np.sum((drawn - np.asarray(update)) ** 2, 1).mean()
        bound = min(11 / 9, math.sqrt(11) / 3) * np.sum(np.asarray(update) ** 2)
        assert spread <= bound


def test_qsgd_by_hand():
    update = {"w": jnp.array([[3.0, -4.0], [0.0, 0.0]])}  # norm 5, s = 1
    message, back = sent("qsgd", update, bits=2)
    level = np.asarray(message["delta"].values["w"])
    assert set(np.unique(level)) <= {-1, 0, 1} and level.dtype == np.int8
    assert (level[1] == 0).all() and level[0, 0] >= 0 and level[0, 1] <= 0
    np.testing.assert_allclose(back["w"], 5.0 * level, rtol=1e-6)
    assert charged(message) == (4 * 2 + 32, 0)
    message, back = sent("qsgd", update, bits=8, bucket=2)  # a norm for each pair
    np.testing.assert_allclose(message["scale"].values["w"], [5, 0], rtol=1e-6)
    np.testing.assert_allclose(back["w"], update["w"], atol=5 / 127)
    assert charged(message) == (4 * 8 + 2 * 32, 0)
    message, _ = sent("qsgd", {"w": jnp.ones(5)}, bits=4, bucket=2)  # a pair and a half
    assert message["scale"].values["w"].shape == (3,)


def test_a_sign_is_a_bit_and_that_of_a_zero_a_plus():
    """Positions that follow from a key are free."""
    assert charged(sent("sign")[0]) == (46 + 2 * 32, 0)
    bits = sent("sign", {"w": jnp.array([0.0, -0.0, -1.0])})[0]["delta"].values["w"]
    assert bits.tolist() == [1, 1, 0]
    assert charged(sent("randomk")[0]) == (32 * 5, 0)


def test_stc_charges_a_bit_a_value_a_magnitude_a_leaf_and_no_zero():
    message, _ = sent("stc")
    values, positions = charged(message)
    assert values == 6 + 2 * 32
    assert positions == 6 + 4 + sum(
        write_gaps(flat(m)).size for m in jax.tree.leaves(message["delta"].mask)
    )
    few, back = sent("stc", {"w": jnp.array([0.0, -3.0, 0.0, 0.0])}, density=0.5)
    assert few["delta"].mask["w"].sum() == 1  # no zero travels as a magnitude
    assert back["w"].tolist() == [0, -3, 0, 0]


@pytest.mark.parametrize("name", [name for name in BUILT if name != "majority"])
def test_no_update_decodes_to_none(name):
    _, back = sent(name, jax.tree.map(jnp.zeros_like, UPDATE))
    assert not flat(back).any()


def test_the_majority_decides_and_a_coin_between_equals():
    coder = compressors.majority()
    update = {"w": jnp.array([2.0, -0.1, 0.0])}
    votes = coder.decode(coder.encode(KEY, update))
    assert votes["w"].tolist() == [1, -1, 1]
    mean = {"w": jnp.concatenate([jnp.array([0.2, -0.2]), jnp.zeros(1000)])}
    found = np.asarray(coder.combine(KEY, mean)["w"])
    assert found[:2].tolist() == [1, -1] and set(found) == {-1, 1}
    assert abs(found[2:].mean()) < 0.15  # 4 standard errors are 0.126
