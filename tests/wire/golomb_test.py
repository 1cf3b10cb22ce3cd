"""Golomb codes: their parameter, their bits by the published formula, round trips."""

import math

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefl_jax.wire import positions
from sparsefl_jax.wire.arithmetic import DEVICE, HOST

PHI = (1 + math.sqrt(5)) / 2


def low_bits(n, k):
    """Returns the b of Sattler et al. for k of n positions, straight from the paper."""
    if k in (0, n):
        return 0
    q = (k + 1) / (n + 1)
    return max(0, 1 + math.floor(math.log2(math.log(PHI - 1) / math.log(1 - q))))


def written(flat):
    """Returns the codes of the gaps as text, one gap at a time."""
    b, text, last = low_bits(flat.size, int(flat.sum())), "", -1
    for place in np.flatnonzero(flat):
        gap, last = place - last - 1, place
        text += "1" * (gap >> b) + "0"
        text += format(gap & ((1 << b) - 1), f"0{b}b") if b else ""
    return text


def test_the_table_of_steps_is_the_papers_formula():
    for n in (1, 2, 3, 10, 117):
        for k in range(1, n + 1):
            assert int((positions.gap_steps(n) >= k).sum()) == low_bits(n, k), (n, k)
    big = positions.gap_steps(11_173_962)
    for share, b in ((0.1, 3), (0.02, 5), (1e-3, 9)):
        assert int((big >= round(share * 11_173_962)).sum()) == b


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 300), st.sampled_from([0.0, 0.01, 0.1, 0.4, 0.9, 1.0]), st.data())
def test_streams_are_those_of_the_paper_and_come_back(n, share, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    for flat in (rng.random(n) < share, np.arange(n) > 0, np.arange(n) < n - 1):
        stream = positions.write_gaps(flat)
        assert "".join(map(str, stream)) == written(flat)
        behind = np.concatenate([stream, np.ones(40, np.uint8)])
        back, taken = positions.read_gaps(behind, (n,), int(flat.sum()))
        assert taken == stream.size and back.tobytes() == flat.tobytes()


def test_four_of_a_hundred_by_hand():
    """q = 5 / 101, .4812 / .0508 = 9.48: b = 1 + 3; five positions would take 3 bits.

    Gaps of 1, 32, 20, 47: ceil(g / 16) are 1, 2, 2, 3; g - 1 = 0, 16 + 15, 16 + 3,
    2 * 16 + 14.
    """
    assert positions.gap_steps(100)[3] == 4
    flat = np.isin(np.arange(100), (0, 32, 52, 99))
    assert positions.unary_bits(jnp.asarray(flat)).item() == 8
    for numbers in (HOST, DEVICE):
        bits = [
            positions.POSITIONS["golomb"].bits((100,), k, 8, numbers) for k in (4, 5)
        ]
        assert [int(b) for b in bits] == [4 * 4 + 8, 5 * 3 + 8]
    stream = positions.write_gaps(flat)
    assert "".join(map(str, stream)) == "00000" + "101111" + "100011" + "1101110"
    back, taken = positions.read_gaps(stream, (100,), 4)
    assert back.tolist() == flat.tolist() and taken == 24
