"""FLASC: rounds of a linear loss by hand, what is charged, and refusals."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sparsefl_jax.algorithms import flasc
from sparsefl_jax.core.types import SparseModel
from tests.algorithms import rounds
from tests.models.adapters_test import SGD, adapted_network, run, train_records
from tests.reference import by_hand
from tests.reference.by_hand import batches, bits
from tests.refusals import refused

# --- Rounds of a linear loss: the gradient is the mean of the samples

W = np.float32([4.0, -3.0, 2.0, -1.0, 0.5])
ROWS = [[0.3, -0.1, 0.2, 0.05, -0.4], [-0.2, 0.1, 0.6, 0.05, -0.1]]
DATA = [batches(2, row) for row in ROWS]  # two steps of a rate of 0.1
LINEAR = by_hand.model_of(by_hand.linear_loss, {"w": 1}, {"w": W})


def play(method, number=1):
    """Returns rounds of two clients with these samples."""
    starts = [SparseModel({"w": jnp.asarray(W)}, None, {})] * 2
    data = lambda round, i: DATA[i]  # noqa: E731
    return rounds.play(method, starts, data, [(0, 1)] * number)


SUM = {"server_optimizer": optax.sgd(1.0)}


def test_a_round_by_hand():
    """3 of 5 come down, and all are trained from there: the changes are -0.2 rows."""
    method = flasc(LINEAR, SGD, density=0.6, up_density=0.4, **SUM)
    ((_, _, downs, ups, new, _),) = play(method)
    changes = [[-0.06, 0, 0, 0, 0.08], [0.04, 0, -0.12, 0, 0]]
    for i, change in enumerate(changes):
        down, up = downs[i], ups[i]
        assert down["params"].values["w"].tolist() == [4, -3, 2, 0, 0]
        np.testing.assert_allclose(up["delta"].values["w"], change, atol=1e-6)
        assert up["delta"].mask["w"].tolist() == [c != 0 for c in change]
        # n H(3/5) = 4.9 and n H(2/5) = 4.9 bits; 3 for a count up to 5; one bit more
        assert (bits(down), bits(up)) == (3 * 32 + 3 + 5 + 1, 2 * 32 + 3 + 5)
    want = W + np.mean(changes, 0)
    np.testing.assert_allclose(new.dense.params["w"], want, atol=1e-6)
    assert new.dense.params["w"][3] == W[3]  # no client has sent it


def test_densities_fall_in_steps_to_one_entry():
    method = flasc(LINEAR, SGD, density=1.0, decay=0.5, decay_every=2, **SUM)
    found = []
    for _, _, downs, ups, *_ in play(method, 8):
        packets = [down["params"] for down in downs.values()]
        packets += [up["delta"] for up in ups.values()]
        found.append({int(packet.mask["w"].sum()) for packet in packets})
    assert found == [{5}, {5}, {2}, {2}, {1}, {1}, {1}, {1}]


@pytest.mark.parametrize("name", ("density", "up_density"))
def test_one_entry_is_the_least(name):
    given = {"density": 0.5} | {name: 0.19}
    told = f"{name}=0.19, expected at least 1/5 to leave one of 5 entries"
    refused(lambda: flasc(LINEAR, SGD, **given), told)
    flasc(LINEAR, SGD, **given | {name: 0.2})


def test_leaves_that_are_not_ranked_travel_whole():
    """The kernel 8 x 2 of the last layer, and its bias."""
    model = adapted_network()
    options = {"prunable": ("*lora*",), "server_optimizer": optax.adam(0.05)}
    method = flasc(model, SGD, density=0.25, **options)
    (record,) = train_records(run(method, model))
    for way, name in (("down", "params"), ("up", "delta")):
        assert record[f"entries_{way}"][name] == 2 * (28 // 4 + 18)


def test_the_server_has_adam_by_default():
    """Its first step is 1e-3 in the direction of the change."""
    method = flasc(LINEAR, SGD, density=1.0)
    ((*_, new, _),) = play(method)
    change = np.mean(ROWS, 0) * -0.2
    moved = new.dense.params["w"] - W
    np.testing.assert_allclose(moved, 1e-3 * np.sign(change), atol=1e-6)
