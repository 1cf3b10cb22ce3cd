"""Packets: trees cut and joined, entries counted, bits charged, streams read back."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefl_jax.wire import packets, streams
from sparsefl_jax.wire.charges import message_bits
from sparsefl_jax.wire.packets import Packet
from sparsefl_jax.wire.positions import POSITIONS
from tests.networks import same
from tests.refusals import refused
from tests.wire.arithmetic_test import entropy

pytestmark = pytest.mark.usefixtures("strict_dtypes")


def total(packet):
    message = {"p": packet}
    return message_bits(packets.layout(message), packets.count(message))


def test_a_packet_s_index_is_one_of_the_codes():
    refused(lambda: Packet({}, index="x"), "index='x', expected one of")


def test_an_assumption_needs_something_that_is_free():
    values, mask = {"w": jnp.zeros(2)}, {"w": jnp.ones(2, bool)}
    for free in ({"bits": 0}, {"mask": mask, "index": "none"}):
        layout = packets.layout({"p": Packet(values, **free, assumed="so the table")})
        assert packets.assumptions({"up": layout}) == {"up/p": "so the table"}
    said = "assumed='so', expected bits=0"
    refused(lambda: Packet(values, assumed="so"), said)
    refused(lambda: Packet(values, mask, index="coo", assumed="so"), said)


FLOATS = {"w": jnp.zeros(2)}


@pytest.mark.parametrize(
    "packet, said",
    [
        (Packet(FLOATS, bits=16), "bits=16 for float32 values 'up/w'"),
        (Packet(FLOATS, {"w": jnp.zeros(3, bool)}, index="coo"), "mask of packet 'up'"),
        (Packet(FLOATS, FLOATS, index="none"), "mask of packet 'up' is "),
        (Packet(jnp.zeros(2, jnp.complex64), bits=0), " values, expected bool"),
        (Packet(FLOATS, fresh=jnp.float32(0.5)), "fresh of packet 'up' is "),
    ],
)
def test_layout_refuses_what_does_not_fit(packet, said):
    refused(lambda: packets.layout({"up": packet}), said)


def test_an_optional_packet_takes_a_bit_in_every_round():
    values, mask = np.array([0, 2], np.float32), np.array([False, True])
    whole = Packet(values, mask, index="bitmap", optional=True)
    held, unsent = (dataclasses.replace(whole, **{k: False}) for k in ("fresh", "sent"))
    for packet, bits, data in (
        # 1 for sent and fresh, the bitmap 01, then 2.0, which is 0x40000000.
        (whole, (32, 1 + 2), bytes([0b10101000, 0, 0, 0, 0])),
        (held, (32, 1), bytes([0b00100000, 0, 0, 0, 0])),
        (unsent, (0, 1), bytes(1)),
    ):
        assert total(packet) == bits and streams.encode(packet) == data
    none, garbage = np.zeros(2, bool), np.full(2, 9, np.float32)
    like = dataclasses.replace(whole, mask=none, values=garbage, fresh=False)
    found = streams.decode(streams.encode(whole), like)
    assert (found.values.tolist(), found.mask.tolist()) == ([0, 2], [False, True])
    assert bool(found.fresh)
    assert streams.decode(streams.encode(held), held).values.tolist() == [0, 2]
    found = streams.decode(streams.encode(unsent), unsent)
    assert not found.sent and not found.values.any()


def test_bits_by_hand():
    mask = np.zeros((4, 8), bool)
    mask[0, 0] = mask[1, 0] = mask[3, 7] = True
    values, mask = {"w": jnp.ones((4, 8))}, {"w": jnp.asarray(mask)}
    expected = {
        "none": 0,
        "bitmap": 32,
        "coo": 6 + 3 * 5,  # w(33) = 6
        "golomb": 6 + 3 * 2 + 1 + 2 + 6,  # b = 2; gaps 1, 8, 23
        "packed": 6 + 15,  # 32 H(3 / 32) = 14.35
    }
    for index, positions in expected.items():
        packet = Packet(values, mask, index=index)
        assert total(packet) == (96, positions)
        assert total(dataclasses.replace(packet, fresh=False)) == (96, 0)
        assert total(dataclasses.replace(packet, sent=False)) == (0, 0)
        assert total(dataclasses.replace(packet, bits=0)) == (0, positions)
        assert total(dataclasses.replace(packet, mask=None)) == (1024, 0)


def shape_of(size, dtype):
    return jax.ShapeDtypeStruct((size,), dtype)


def test_bits_do_not_overflow_and_keep_leading_axes():
    # ResNet-18, ten clients, 32 bits: 3 575 667 840 wraps in int32.
    values, mask = shape_of(11_173_962, jnp.float32), shape_of(11_173_962, bool)
    layout = {"p": Packet(values, mask, index="bitmap")}
    entries = np.full((500, 10, 1), 11_173_962, np.int32)
    ones = np.ones((500, 10), bool)
    bits = message_bits(layout, {"p": packets.Count(entries, ones, ones)})
    assert bits.values.shape == (500, 10) and bits.values.dtype == np.int64
    assert int(bits.values[0].sum()) == 3_575_667_840
    assert int(bits.values.sum()) == 500 * 3_575_667_840
    assert int(bits.positions.sum()) == 5000 * 11_173_962


def receiver(packet):
    """Returns the receiver's knowledge: no values and no fresh positions."""

    def blank(tree):
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)

    values = packet.values if packet.bits == 0 else blank(packet.values)
    written = packet.fresh and packet.index in POSITIONS
    travel = packet.mask is not None and written
    mask = blank(packet.mask) if travel else packet.mask
    return dataclasses.replace(packet, values=values, mask=mask)


KINDS = [
    (np.float32, 32),
    (ml_dtypes.bfloat16, 16),
    (np.uint32, 32),
    (np.int8, 3),
    (np.uint8, 5),
    (np.bool_, 1),
    (np.float32, 0),
]
SHAPES = [(), (1,), (0,), (3, 0), (5,), (4, 3), (1, 9), (9, 1), (3, 3, 2, 4)]


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(KINDS),
    st.sampled_from(["none", "entropy", *POSITIONS]),
    st.lists(st.sampled_from(SHAPES), min_size=0, max_size=3),
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_decode_inverts_encode_and_length_is_what_is_charged(
    kind, index, shapes, density, masked, fresh, seed
):
    dtype, bits = kind
    if index == "entropy":  # the other code of one bit is -1 in int8
        dtype, bits = (np.bool_, np.int8)[seed % 2], 1
    rng = np.random.default_rng(seed)
    values, mask = {}, {}
    for i, shape in enumerate(shapes):
        keep = rng.random(shape) < density
        if np.dtype(dtype).kind in "iu":
            low = -(2 ** (bits - 1)) if np.dtype(dtype).kind == "i" else 0
            drawn = rng.integers(low, low + 2**bits, shape)
        else:
            drawn = rng.normal(size=shape)
        value = np.asarray(drawn).astype(dtype)
        zero = np.zeros((), dtype)
        values[f"l{i}"] = np.where(keep, value, zero) if masked else value
        mask[f"l{i}"] = np.asarray(keep)
    packet = Packet(values, mask if masked else None, fresh, True, bits, index)
    data = streams.encode(packet)
    charged, slack = int(total(packet).total), streams.slack(packet)
    assert slack <= {"packed": 2 * len(shapes), "entropy": 2}.get(index, 0)
    assert math.ceil(charged / 8) <= len(data) <= math.ceil((charged + slack) / 8)
    back = streams.decode(data, receiver(packet))
    assert same(back.values, packet.values)
    assert same(back.mask, packet.mask)


@pytest.mark.parametrize(("n", "ones", "bits"), [(0, 0, 0), (8, 4, 12), (7, 1, 8)])
def test_entropy_bits_by_hand(n, ones, bits):
    # 7 entries, one of them 1: 3 bits tell the one, 7 H(1 / 7) = 4.14 all values.
    packet = Packet(jnp.arange(n) < ones, bits=1, index="entropy")
    assert total(packet) == (bits, 0)


def test_entropy_is_charged_per_packet_and_by_client():
    def one(row):
        values = {"a": row > 0, "b": jnp.ones(2, jnp.bool_)}
        mask = {"a": jnp.arange(6) < 4, "b": jnp.ones(2, jnp.bool_)}
        packet = Packet(values, mask, sent=row[5] < 9, bits=1, index="entropy")
        return packets.count({"p": packet})

    rows = jnp.array([[1, 1, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1], [1, 1, 1, 1, 1, 9]])
    counts = jax.jit(jax.vmap(one))(rows)
    assert counts["p"].measured.tolist() == [[2, 2], [0, 2], [4, 2]]
    assert counts["p"].measured.dtype == counts["p"].entries.dtype == jnp.int32
    mask = {"a": shape_of(6, bool), "b": shape_of(2, bool)}
    layout = {"p": Packet(mask, mask, bits=1, index="entropy")}
    bits = message_bits(layout, counts)
    # Six entries, w(7) = 3; four ones, two ones, and nothing sent.
    expected = 3 + math.ceil(entropy(6, 2))
    assert bits.values.tolist() == [expected, expected, 0]
    assert bits.positions.tolist() == [0, 0, 0]


def test_encode_refuses_codes_that_do_not_fit():
    packet = Packet({"w": np.array([0, 4], np.int8)}, bits=3)
    refused(lambda: streams.encode(packet), "bits=3 but codes reach from 0 to 4")


@pytest.mark.parametrize(
    "dtype, bits, fits, misfits",
    [
        (np.uint8, 1, [0, 1], [2]),
        (np.int8, 4, [-8, 7], [8, -9]),
        (np.int32, 31, [-(2**30), 2**30 - 1], [2**30]),
    ],
)
def test_a_round_counts_codes_that_do_not_fit(dtype, bits, fits, misfits):
    def told(*codes, sent=True):
        tree = {"a": np.array(fits, dtype), "b": np.array(codes, dtype)}
        packet = Packet(tree, bits=bits, sent=sent)
        return packets.count({"p": packet})["p"].entries.tolist()

    assert told(*fits) == [2, 2]
    for code in misfits:
        assert told(0, code) == [-1, -1] and told(0, code, sent=False) == [2, 2]


def test_special_floats_survive():
    packet = Packet({"w": np.array([np.nan, -0.0, np.inf, 1e-42], np.float32)})
    assert same(streams.decode(streams.encode(packet), packet).values, packet.values)
