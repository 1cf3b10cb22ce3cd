"""The theorems' terms by hand, and where they say nothing."""

import math
from fractions import Fraction

import pytest

from sparsefl_jax import analysis
from sparsefl_jax.analysis import spafl


def test_epsilon_of_one_round_is_eq_30():
    """With delta = exp(-2) the exponent is (2 r + r^2) / 2; r = density M_g / sigma."""
    found = analysis.round_epsilon(0.5, 4.0, 2.0, math.exp(-2), 10, 40)
    assert found == pytest.approx(math.log(0.75 + 0.25 * math.exp(1.5)))  # r = 1
    every = analysis.round_epsilon(0.5, 4.0, 2.0, math.exp(-2), 40, 40)
    assert every == pytest.approx(1.5)
    huge = analysis.round_epsilon(1.0, 200.0, 2.0, math.exp(-2), 10, 40)
    assert huge == pytest.approx(5100 + math.log(0.25))


def test_epsilon_and_delta_of_all_rounds_are_eq_15():
    """log(1 / delta) = 1/2 and r^2 + r = 2 ln 3 give ln 3 a round, 12 ln 3 of 16."""
    delta, ratio = math.exp(-0.5), (math.sqrt(1 + 8 * math.log(3)) - 1) / 2
    found = analysis.generalization(1.0, ratio, 1.0, delta, 8, 8, 16)
    assert found.round_epsilon == pytest.approx(math.log(3))
    assert found.epsilon == pytest.approx(12 * math.log(3))  # 4 ln 3 + 16 ln 3 / 2
    assert found.gap == pytest.approx(108 * math.log(3))
    chernoff = 3.0**-14 * (8 / 4) ** 16 * 7.0**-14
    rest = 2 - (1 - delta / 4) ** 16 - (1 - 3 * delta / 4) ** 12 * (1 - delta / 4) ** 4
    assert found.delta == pytest.approx(chernoff + rest)
    wanted = 2 / found.epsilon**2 * math.log(16 / (3.0**-12 * (chernoff + rest)))
    assert found.least_samples == pytest.approx(wanted)
    assert spafl._composed_delta(math.log(3), 12 * math.log(3), 0.0, 16) == (
        pytest.approx(chernoff)
    )


def test_the_probability_is_that_of_theorem_1():
    found = analysis.generalization(0.35, 0.25, 1.0, 1e-6, 64, 60_000, 500)
    e, d = found.epsilon, found.delta
    assert found.probability == pytest.approx(
        1 - math.exp(-e) * d / e * math.log(2 / e)
    )
    # for rare failures delta is about T times that of a round, here 500 times 1e-6
    assert d == pytest.approx(500e-6, rel=0.01)


def test_the_delta_of_many_rounds_keeps_its_digits():
    """By exact fractions: 2 - a - b loses all digits of a double at delta = 1e-18."""
    once, delta = math.log(3), Fraction(1, 10**18)
    exact = 2 - (1 - delta / 4) ** 400
    exact -= (1 - 3 * delta / 4) ** 300 * (1 - delta / 4) ** 100
    found = spafl._composed_delta(once, 299.5 * once, 1e-18, 400)
    assert found == pytest.approx(float(exact), rel=1e-9)


def test_a_premise_that_does_not_hold_is_refused():
    diameter = 0.01 * math.sqrt(431_080)
    with pytest.raises(ValueError, match="rounds=500, expected more for eq. 15"):
        analysis.generalization(1.0, diameter, 1.0, 1e-8, 64, 60_000, 500)


def test_fedsparsify_theorem_1_by_hand():
    """The last line of the proof, over eta S / 4, gives the theorem's terms."""
    eta, L, S, sigma2, eps2 = 0.01, 2.0, 4, 0.3, 0.5
    terms = analysis.convergence_bound(
        *(eta, L, S),
        variance=sigma2,
        heterogeneity=eps2,
        first_gap=1.5,
        lipschitz=3.0,
        pruned=[0.2, 0.1, 0.0],
    )
    left = (eta**2 * L * S / 2 + 2 * L**2 * eta**3 * S**3) * sigma2
    left += 8 * L**2 * eta**3 * S**4 * eps2
    assert terms.noise == pytest.approx(left / (eta * S / 4))
    assert terms.start == pytest.approx(4 / (3 * 0.01 * 4) * 1.5)
    assert terms.pruning == pytest.approx(4 / (3 * 0.01 * 4) * 3.0 * 0.3)
    assert terms.total == pytest.approx(terms.noise + terms.start + terms.pruning)


def test_the_rate_of_fedsparsify_makes_its_gradient_term_negative():
    """-eta S / 2 + 8 L^2 eta^3 S^4 <= -eta S / 4, with equality at the largest rate."""
    L, S = 3.0, 5
    eta = analysis.largest_rate(L, S)
    assert -eta * S / 2 + 8 * L**2 * eta**3 * S**4 == pytest.approx(-eta * S / 4)
    given = dict(variance=0, heterogeneity=0, first_gap=0, lipschitz=0, pruned=[0])
    analysis.convergence_bound(0.99 * eta, L, S, **given)
    with pytest.raises(ValueError, match="learning_rate=.*, expected below 0.00527"):
        analysis.convergence_bound(eta, L, S, **given)
