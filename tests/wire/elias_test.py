"""Elias codes of QSGD's levels: bits by the published formulas, and round trips."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefl_jax.wire import codes, elias, packets, streams
from sparsefl_jax.wire.charges import most_bits
from sparsefl_jax.wire.packets import Packet
from tests.refusals import refused


def omega(m):
    """Returns the bits of an omega code by Elias's recursion, in floats."""
    if m == 1:
        return 1
    below = int(np.floor(np.log2(m)))
    return omega(below) + 1 + below


def bits_by_hand(levels, bits, bucket=0):
    """Returns the bits of a leaf by QSGD's two sums, an entry at a time."""
    flat, s = np.abs(np.ravel(levels).astype(int)), 2 ** (bits - 1) - 1
    n = min(bucket, flat.size) if bucket else flat.size
    total = 0
    for start in range(0, flat.size, n or 1):
        part = flat[start : start + n]
        if s >= np.sqrt(n):
            total += sum(omega(v + 1) + (v > 0) for v in part)
            continue
        total += int(np.ceil(np.log2(n + 1)))
        last = -1
        for place, level in enumerate(part):
            if level:
                total += omega(place - last) + 1 + omega(level)
                last = place
    return total


def leaf(size, bits, share, seed=0):
    """Returns random levels, of which a share is not 0."""
    rng, s = np.random.default_rng(seed), 2 ** (bits - 1) - 1
    levels = rng.integers(1, s + 1, size) * rng.choice([-1, 1], size)
    return np.where(rng.random(size) < share, levels, 0).astype(np.int8)


def test_omega_is_that_of_the_papers():
    lengths = {1: 1, 2: 3, 3: 3, 4: 6, 7: 6, 8: 7, 15: 7, 16: 11, 31: 11, 100: 13}
    for m, length in lengths.items():
        assert omega(m) == length
    # The codes themselves, as Elias prints them: 1, 2, 4, 16.
    found = elias.write([np.array([0, 1, 3, 15])], 8)
    assert "".join(map(str, found)) == "0" + "100" + "0" + "101000" + "0" + (
        "10100100000" + "0"
    )


def test_by_hand():
    levels = np.array([0, 0, 0, -2, 1, 0, 0, 0, 0, 3], np.int8)
    # s = 3 < sqrt(10): w(11) = 4; gaps 4, 1, 5 and levels 2, 1, 3.
    sparse = 4 + (6 + 1 + 3) + (1 + 1 + 1) + (6 + 1 + 3)
    # s = 7: seven zeros; 3, 2, 4 and their signs.
    dense = 7 + (3 + 1) + (3 + 1) + (6 + 1)
    # Buckets of 9, as if the last had 9 entries: s = 3 is dense, s = 1 is not.
    assert elias.level_bits(jnp.asarray(levels), 3).item() == sparse
    assert elias.level_bits(jnp.asarray(levels), 4).item() == dense
    assert elias.level_bits(jnp.asarray(levels), 3, 9).item() == dense
    signs = np.sign(levels)
    last = 4 + (1 + 1 + 1)
    sparse = 4 + (6 + 1 + 1) + (1 + 1 + 1) + last
    assert elias.level_bits(jnp.asarray(signs), 2, 9).item() == sparse


level_bits = jax.jit(elias.level_bits, static_argnums=(1, 2))


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.sampled_from([0, 1, 9, 60, 300]), max_size=3),
    st.sampled_from([2, 4, 8]),
    st.sampled_from([0, 1, 10, 1000]),
    st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    st.integers(0, 2**31),
)
def test_streams_are_as_long_as_counted_and_come_back(sizes, bits, bucket, share, seed):
    leaves = [leaf(n, bits, share, seed + i) for i, n in enumerate(sizes)]
    written = [codes.to_codes(v, bits) for v in leaves]
    stream = elias.write(written, bits, bucket)
    assert stream.size == sum(bits_by_hand(v, bits, bucket) for v in leaves)
    counted = [level_bits(v, bits, bucket) for v in leaves]
    assert stream.size == sum(int(c) for c in counted)
    behind = np.concatenate([stream, np.ones(40, np.uint8)])
    back = elias.read(behind, sizes, bits, bucket)
    for levels, found in zip(leaves, back, strict=True):
        np.testing.assert_array_equal(codes.from_codes(found, np.int8, bits), levels)


def test_the_device_counts_far_gaps_of_many_clients():
    size, places = 70_000, [0, 1, 2, 254, 255, 32_767, 65_534, 65_535, 69_999]
    rows = jnp.zeros((len(places), size), jnp.int8).at[jnp.arange(9), places].set(-1)

    def one(row):
        return packets.count({"p": Packet({"w": row}, bits=4, index="elias")})["p"]

    counts = jax.jit(jax.vmap(one))(rows)
    # 17 bits tell that there is one; a sign and a level of 1.
    assert counts.measured.tolist() == [[17 + omega(p + 1) + 1 + 1] for p in places]
    assert counts.measured.dtype == jnp.int32
    assert omega(65_536) == 28 and omega(65_535) == 23


def test_the_most_is_reached_by_the_dearest_levels():
    for size, bits, bucket in ((4, 2, 0), (5, 2, 3), (3, 3, 0), (3, 3, 1)):
        s = 2 ** (bits - 1) - 1
        every = itertools.product(range(-s, s + 1), repeat=size)
        found = max(bits_by_hand(levels, bits, bucket) for levels in every)
        packet = Packet(
            np.zeros(size, np.int8), bits=bits, index="elias", bucket=bucket
        )
        assert most_bits(packets.layout({"p": packet})) == found
    most = elias.most(40_000, 8)
    for gap in (1, 2, 4, 256):  # every gap alike: none is dearer than gaps of 1
        levels = np.zeros(40_000, np.int8)
        levels[gap - 1 :: gap] = 127
        cost = elias.level_bits(jnp.asarray(levels), 8).item()
        assert cost == most if gap == 1 else cost < most


def test_leaves_whose_bits_may_wrap_are_refused():
    """omega(128) takes 14 bits, and a sign: 143,165,576 levels reach 2^31."""

    def count(size):
        leaf = jax.ShapeDtypeStruct((size,), np.int8)
        return jax.eval_shape(lambda x: elias.level_bits(x, 8, 16), leaf)

    assert count(143_165_576).dtype == jnp.int32
    refused(lambda: count(143_165_577), "143165577 levels may take 2147483655 bits")


@pytest.mark.parametrize(
    "given, said",
    [
        ({"bits": 9}, "bits=9, expected 2 to 8 with index='elias'"),
        ({"mask": np.ones(3, bool)}, "mask is a tree, expected None with index"),
        ({"index": "none", "bucket": 2}, "bucket=2, expected 0 with index='none'"),
        ({"bucket": -1}, "bucket=-1, expected at least 0"),
    ],
)
def test_refuses_a_packet(given, said):
    levels, usual = np.zeros(3, np.int8), {"bits": 4, "index": "elias"}
    refused(lambda: Packet(levels, **usual | given), said)


def test_refuses_a_level_above_s():
    low = Packet(np.array([0, -8], np.int8), bits=4, index="elias")
    refused(lambda: streams.encode(low), "level=-8, expected -7 to 7, bits=4")
