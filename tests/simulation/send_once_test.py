"""What clients receive once, before their first round, is charged then."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.data import from_arrays
from sparsefl_jax.runs import simulate
from sparsefl_jax.runs.setup import make
from sparsefl_jax.simulation import clock
from sparsefl_jax.sparsity import masks

CLIENTS, FEATURES, HIDDEN, CLASSES = 5, 6, 4, 3
WEIGHTS = FEATURES * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES
FILTERS = HIDDEN + CLASSES
DRAWN = np.array([[0, 1], [1, 2], [0, 2]])  # new are 2, 1 and 0 clients
MODEL = sfl.models.build("mlp", CLASSES, (FEATURES,), widths=(HIDDEN,))
DENSE = 32 * WEIGHTS


def setup(method, **settings):
    """Three rounds of two of five clients, of which the third round has met both."""
    rng, own = np.random.default_rng(0), np.arange(CLIENTS).repeat(4)
    x = rng.normal(size=(len(own), FEATURES)).astype(np.float32)
    y = rng.integers(CLASSES, size=len(own))
    data = from_arrays(x, y, x_test=x, y_test=y, users=own, partition="natural")
    optimizer = sfl.training.make_optimizer(learning_rate=0.1)

    def sampler(key, round):
        return jnp.asarray(DRAWN, jnp.int32)[round]

    method = method(MODEL, optimizer, **settings)
    return make([sfl.Stage(method, 3, 2, sampler=sampler)], MODEL, data)


def down(setup):
    records = simulate.run(jax.random.key(0), **setup._asdict()).metrics
    return [r["bits_down_by_client"] for r in records if r["phase"] == "train"]


EACH = 2 * 32 * FILTERS  # thresholds and how they moved
SCORES = 32 * WEIGHTS
HANDED = {  # method, arguments, bits of every round and of a client's first beside it
    "spafl_seed": (sfl.spafl, {"initial": "seed"}, EACH, 32),
    "local": (sfl.local_only, {}, 0, 0),
    "local_sent": (sfl.local_only, {"initial": "sent"}, 0, DENSE),
    "fedpm": (sfl.fedpm, {}, SCORES, 0),
    "fedpm_sent": (sfl.fedpm, {"weights": "initial"}, SCORES, DENSE),
    "fedpm_seed": (sfl.fedpm, {"weights": "initial", "initial": "seed"}, SCORES, 32),
    "fedspa": (sfl.fedspa, {"density": 0.5, "mask_update": "dst", "adjust_until": 2},
               32 * WEIGHTS, 32),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", HANDED)
def test_it_is_charged_in_a_clients_first_round_alone(name):
    method, settings, each, received = HANDED[name]
    one = setup(method, **settings)
    want = [[each + received] * 2, [each, each + received], [each, each]]
    assert down(one) == want


def test_a_first_round_takes_the_clock_longer_by_what_is_handed():
    device = clock.Device(*(np.full(CLIENTS, v) for v in (np.inf, 1000.0, np.inf, 0.0)))
    present = np.ones((CLIENTS, 1))
    system = clock.System(device, present, np.zeros(CLIENTS, int), ("phones",))
    fields = setup(sfl.spafl)._replace(system=system)._asdict()
    records = simulate.run(jax.random.key(0), **fields).metrics
    bits, took = (
        [r[f"{name}_by_client"] for r in records if r["phase"] == "train"]
        for name in ("bits_down", "seconds")
    )
    want = np.array([[EACH + DENSE] * 2, [EACH, EACH + DENSE], [EACH, EACH]])
    np.testing.assert_array_equal(bits, want)
    np.testing.assert_allclose(took, want / 1000, rtol=1e-6)


def begun(method, **settings):
    """Returns the method, its server, and the parameters that it starts from."""
    params, stats = MODEL.init(jax.random.key(0))
    made = method(MODEL, sfl.training.make_optimizer(), **settings)
    return made, made.init(jax.random.key(1), masks.dense(params, stats)), params


def test_clients_alone_draw_networks_of_their_own_or_start_from_the_same():
    first = {}
    for initial in ("seed", "sent"):
        method, server, params = begun(sfl.local_only, initial=initial)
        pair = [
            method.first_state(jax.random.key(k), server, None).trained.params
            for k in (2, 3)
        ]
        first[initial] = [p["fc1"]["kernel"] for p in pair]
    assert not np.array_equal(*first["seed"])
    for kernel in first["sent"]:
        np.testing.assert_array_equal(kernel, params["fc1"]["kernel"])


def test_the_first_mask_of_nst_is_the_servers_drawn_from_the_seed():
    method, server, _ = begun(sfl.nst, density=0.5)
    mask = method.first_state(jax.random.key(2), server, None)
    jax.tree.map(np.testing.assert_array_equal, mask, server.mask)
    assert {n: p.bits for n, p in method.send_once(server).items()} == {"seed": 32}
