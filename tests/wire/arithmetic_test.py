"""The arithmetic coder: its streams decode, and have the length that it states."""

import math

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparsefl_jax.wire import arithmetic

SHARES = (0.0, 0.001, 0.01, 0.5, 0.99, 1.0)


def entropy(n, ones):
    """Returns n H(ones / n) in bits."""
    return sum(k * math.log2(n / k) for k in (ones, n - ones) if k)


def check(values):
    """Checks the round trip and the length, and returns the length."""
    n, ones = values.size, int(values.sum())
    stream = arithmetic.encode(values)
    least = math.ceil(entropy(n, ones))
    assert least <= stream.size <= (least + 2 if least else 0)
    assert set(np.unique(stream)) <= {0, 1}
    for after in (0, 1):  # padding, or other data that follows
        behind = np.full(70, after, np.uint8)
        back, taken = arithmetic.decode(np.concatenate([stream, behind]), n, ones)
        assert taken == stream.size
        assert back.dtype == bool and back.tobytes() == values.tobytes()
    np.testing.assert_array_equal(arithmetic.decode(stream, n, ones)[0], values)
    return stream.size


def test_every_sequence_of_up_to_nine():
    for n in range(10):
        for code in range(2**n):
            check((code >> np.arange(n)) & 1 == 1)


@settings(deadline=None, max_examples=150)
@given(
    st.integers(0, 400), st.one_of(st.sampled_from(SHARES), st.floats(0, 1)), st.data()
)
@example(1, 1.0, None)
@example(430_500, 0.01, None)  # a mask of LeNet-5
def test_random_sequences(n, share, data):
    seed = data.draw(st.integers(0, 2**31)) if data else 0
    check(np.random.default_rng(seed).random(n) < share)


def test_a_carry_runs_through_many_words():
    # Intervals around one half begin at 0.0111..., and half of their streams at 0.1000.
    half, carried = np.eye(1, 2000, dtype=np.uint8)[0], 0
    for n in range(1000, 1100):
        for ones in range(n // 2 - 9, n // 2 + 9):
            values, _ = arithmetic.decode(half, n, ones)
            if values.sum() == ones:
                check(values)
                stream = arithmetic.encode(values)
                assert (stream[1:900] != stream[0]).all()
                carried += int(stream[0])
    assert carried
