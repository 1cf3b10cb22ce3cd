"""FLASC: what it equals, what stays, what travels on adapters, and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sparsefl_jax.algorithms import compressed, fedavg, flasc, rank_tiers
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.wire.packets import Packet
from tests.adapters_test import SGD, adapted_network, run, train_records
from tests.by_hand import (
    KEY,
    batches,
    bits,
    context,
    linear_loss,
    merged,
    model_of,
    one_client,
    same,
)
from tests.flasc_by_hand import flat
from tests.refusals import refused

ADAM = {"server_optimizer": optax.adam(0.05)}
ENTRIES = 6 * 2 + 2 * 8 + (8 * 2 + 2)  # A, B and the last layer
FFA = 2 * 8 + (8 * 2 + 2)


def params(done, name="global"):
    return done.models[name].params


@pytest.fixture(scope="module")
def dense():
    """Three rounds of FedAvg with Adam on adapters."""
    model = adapted_network()
    method = fedavg(model, SGD, weighting="uniform", **ADAM)
    return params(run(method, model, rounds=3))


def test_at_density_1_it_is_fedavg_with_adam(dense):
    """Bit for bit, and with the same bits: 46 entries each way, nothing else."""
    model = adapted_network()
    done = run(flasc(model, SGD, density=1.0, **ADAM), model, rounds=3)
    same(params(done), dense)
    same(params(done, "unpruned"), dense)
    for record in train_records(done):
        assert record["bits_up"] == 2 * 32 * ENTRIES


def test_with_a_dense_downlink_it_is_compression_by_top_k():
    """23 of 46 entries go up, of all leaves together."""
    model = adapted_network()
    half = {"weighting": "uniform"} | ADAM
    topk = compressed(model, SGD, up="topk", feedback="none", density=0.5, **half)
    ours = flasc(model, SGD, density=1.0, up_density=0.5, **half)
    one, other = (run(method, model, rounds=3) for method in (ours, topk))
    same(params(one), params(other))
    for a, b in zip(*map(train_records, (one, other)), strict=True):
        assert a["entries_up"]["delta"] == b["entries_up"]["delta"] == 2 * 23
        assert a["bits_up"] == b["bits_up"]


def test_the_first_mask_has_no_entry_of_b():
    """A has 12 entries and the last kernel 16; B and the bias start at 0."""
    model = adapted_network()
    for density, of_b in ((28 / 46, 0), (36 / 46, 8)):
        method = flasc(model, SGD, density=density)
        start, stats = model.init(KEY)
        server = method.init(KEY, SparseModel(start, None, stats))
        sent = method.broadcast(KEY, context(), server)["params"]
        assert flat(sent.mask).sum() == round(46 * density)
        assert sent.mask["fc"]["lora_b"]["kernel"].sum() == of_b


def test_with_frozen_a_the_largest_are_of_b_and_the_head():
    model = adapted_network(freeze=("*lora_a*",))
    done = run(flasc(model, SGD, density=0.5, **ADAM), model, rounds=2)
    assert params(done)["fc"].keys() == {"lora_b"}
    for record in train_records(done):
        assert record["entries_up"]["delta"] == 2 * FFA // 2
        assert record["entries_down"]["params"] == 2 * FFA // 2


# --- Rounds of a linear loss: the gradient is the mean of the samples

W = np.float32([4.0, -3.0, 2.0, -1.0, 0.5])
ROWS = [[0.3, -0.1, 0.2, 0.05, -0.4], [-0.2, 0.1, 0.6, 0.05, -0.1]]
DATA = [batches(2, row) for row in ROWS]  # two steps of a rate of 0.1
LINEAR = model_of(linear_loss, {"w": 1}, {"w": W})


def round_of(method, server=None, number=0):
    """Returns the messages of two clients in a round, the server before and after."""
    start = SparseModel({"w": jnp.asarray(W)}, None, {})
    server = method.init(KEY, start) if server is None else server
    sent = [
        (context(number, index=i), one_client(method, server, context(number), each))
        for i, each in enumerate(DATA)
    ]
    new, _ = merged(method, server, *((ctx, up) for ctx, (_, up, _) in sent),
                    round=number)  # fmt: skip
    return [(down, up) for _, (down, up, _) in sent], server, new


SUM = {"server_optimizer": optax.sgd(1.0)}


def test_a_round_by_hand():
    """3 of 5 come down, and all are trained from there: the changes are -0.2 rows."""
    method = flasc(LINEAR, SGD, density=0.6, up_density=0.4, **SUM)
    messages, _, new = round_of(method)
    changes = [[-0.06, 0, 0, 0, 0.08], [0.04, 0, -0.12, 0, 0]]
    for (down, up), change in zip(messages, changes, strict=True):
        assert down["params"].values["w"].tolist() == [4, -3, 2, 0, 0]
        np.testing.assert_allclose(up["delta"].values["w"], change, atol=1e-6)
        assert up["delta"].mask["w"].tolist() == [c != 0 for c in change]
        # n H(3/5) = 4.9 and n H(2/5) = 4.9 bits; 3 for a count up to 5; one bit more
        assert (bits(down), bits(up)) == (3 * 32 + 3 + 5 + 1, 2 * 32 + 3 + 5)
    want = W + np.mean(changes, 0)
    np.testing.assert_allclose(new.dense.params["w"], want, atol=1e-6)
    assert new.dense.params["w"][3] == W[3]  # no client has sent it


def test_what_is_masked_is_not_trained():
    """The receiver knows the positions of what goes up."""
    method = flasc(LINEAR, SGD, density=0.6, train="masked", **SUM)
    messages, _, new = round_of(method)
    for (_, up), row in zip(messages, ROWS, strict=True):
        change = -0.2 * np.array(row) * [1, 1, 1, 0, 0]
        np.testing.assert_allclose(up["delta"].values["w"], change, atol=1e-6)
        assert bits(up) == 3 * 32
    assert new.dense.params["w"][3:].tolist() == W[3:].tolist()


def test_of_what_is_trained_within_the_mask_a_share_can_go_up():
    """One of five: of the changes -0.2 rows of the first three, the largest."""
    method = flasc(LINEAR, SGD, density=0.6, up_density=0.2, train="masked", **SUM)
    messages, _, _ = round_of(method)
    wants = [-0.06, 0, 0, 0, 0], [0, 0, -0.12, 0, 0]
    for (_, up), want in zip(messages, wants, strict=True):
        np.testing.assert_allclose(up["delta"].values["w"], want, atol=1e-6)
        assert bits(up) == 32 + 3 + 4  # n H(1/5) = 3.6


def test_the_next_mask_is_that_of_the_new_model():
    """With 20 times the mean change it is [3.8, -3, 0.8, -1, 1.3]."""
    method = flasc(
        LINEAR, SGD, density=0.6, up_density=0.4, server_optimizer=optax.sgd(20.0)
    )
    _, _, new = round_of(method)
    assert new.mask["w"].tolist() == [True, True, False, False, True]
    deployed = method.deploy(KEY, new)
    want = [3.8, -3, 0, 0, 1.3]
    np.testing.assert_allclose(deployed["global"].params["w"], want, atol=1e-5)
    want = [3.8, -3, 0.8, -1, 1.3]
    np.testing.assert_allclose(deployed["unpruned"].params["w"], want, atol=1e-5)


def test_densities_fall_in_steps_to_one_entry():
    method = flasc(LINEAR, SGD, density=1.0, decay=0.5, decay_every=2, **SUM)
    server, found = None, []
    for number in range(8):
        messages, _, server = round_of(method, server, number)
        found += [
            {int(p.mask["w"].sum()) for m in messages for d in m for n, p in d.items()
             if n != "stats"}
        ]  # fmt: skip
    assert found == [{5}, {5}, {2}, {2}, {1}, {1}, {1}, {1}]


def test_positions_are_charged_where_the_mask_is_new():
    """The order stays in round 0, and a client that holds the mask pays a bit."""
    method = flasc(LINEAR, SGD, density=0.6, **SUM)
    _, old, new = round_of(method)
    same(new.mask, old.mask)
    known, missed = (
        bits(method.broadcast(KEY, context(1, last=last), new)) for last in (0, -1)
    )
    assert (known, missed) == (3 * 32 + 1, 3 * 32 + 1 + 3 + 5)


@pytest.mark.parametrize("name", ("density", "up_density"))
def test_one_entry_is_the_least(name):
    for value in (0.0, 1.01):
        given = {"density": 0.5} | {name: value}
        refused(lambda g=given: flasc(LINEAR, SGD, **g), f"{name}={value}, expected in")
    given = {"density": 0.5} | {name: 0.19}
    told = f"{name}=0.19, expected at least 0.2 to leave one of 5 entries"
    refused(lambda: flasc(LINEAR, SGD, **given), told)
    flasc(LINEAR, SGD, **given | {name: 0.2})


def test_other_arguments_are_refused():
    for given, told in (
        ({"train": "sparse"}, "train='sparse', expected one of dense, masked"),
        ({"decay": 0.0}, "decay=0.0, expected in (0, 1]"),
        ({"decay_every": 0}, "decay_every=0, expected in [1, inf)"),
    ):
        refused(lambda g=given: flasc(LINEAR, SGD, density=0.5, **g), told)


def test_leaves_that_are_not_ranked_travel_whole():
    """The kernel 8 x 2 of the last layer, and its bias."""
    model = adapted_network()
    method = flasc(model, SGD, density=0.25, prunable=("*lora*",), **ADAM)
    (record,) = train_records(run(method, model))
    for way, name in (("down", "params"), ("up", "delta")):
        assert record[f"entries_{way}"][name] == 2 * (28 // 4 + 18)


@pytest.mark.parametrize("weighting, times", [("uniform", 1), ("examples", 3)])
def test_a_client_of_three_samples_weighs_as_asked(weighting, times):
    model = adapted_network()
    method = flasc(model, SGD, density=1.0, weighting=weighting)
    start, stats = model.init(KEY)
    uplink = {"delta": Packet(start), "stats": Packet(stats)}
    sums = []
    for samples in (1, 3):
        sums.append(flat(method.contribute(context(size=samples), uplink)))
    np.testing.assert_allclose(sums[1], times * sums[0], rtol=1e-6)


@pytest.mark.parametrize(
    "factory, options", [(flasc, {"density": 1.0}), (rank_tiers, {})]
)
def test_the_server_has_adam_by_default(factory, options):
    """Its first step is 1e-3 in the direction of the change."""
    model = adapted_network()
    method = factory(model, SGD, **options)
    start, stats = model.init(KEY)
    server = method.init(KEY, SparseModel(start, None, stats))
    ones = jax.tree.map(jnp.ones_like, start)
    mask = jax.tree.map(lambda v: jnp.ones(v.shape, bool), start)
    uplink = {"delta": Packet(ones, mask, index="none"), "stats": Packet(stats)}
    total = method.contribute(context(), uplink)
    new, _ = method.aggregate(KEY, jnp.int32(0), server, total)
    moved = method.deploy(KEY, new)["global"].params
    np.testing.assert_allclose(flat(moved) - flat(start), 1e-3, rtol=1e-3)
