"""What clients receive once, before their first round, is charged then."""

import jax
import jax.numpy as jnp
import numpy as np

import sparsefl_jax as sfl
from sparsefl_jax.data import from_arrays
from sparsefl_jax.simulation import clock
from sparsefl_jax.sparsity import masks
from tests.models.models_test import mostly_slow

CLIENTS, FEATURES, HIDDEN, CLASSES = 5, 6, 4, 3
WEIGHTS = FEATURES * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES
DRAWN = np.array([[0, 1], [1, 2], [0, 2]])  # new are 2, 1 and 0 clients
MODEL = sfl.models.build("mlp", CLASSES, (FEATURES,), widths=(HIDDEN,))


DENSE, EACH = 32 * WEIGHTS, 2 * 32 * (HIDDEN + CLASSES)


HANDED = {  # method, arguments, bits of every round and of a client's first beside it
    "spafl": (sfl.spafl, {}, EACH, DENSE),  # thresholds and how they moved
    "spafl_seed": (sfl.spafl, {"initial": "seed"}, EACH, 32),
    "local": (sfl.local_only, {}, 0, 0),
    "local_sent": (sfl.local_only, {"initial": "sent"}, 0, DENSE),
    "fedpm_sent": (sfl.fedpm, {"weights": "initial"}, DENSE, DENSE),
    "fedspa": (
        sfl.fedspa,
        {"density": 0.5, "mask_update": "dst", "adjust_until": 2},
        DENSE,
        32,
    ),
}


@mostly_slow(HANDED, quick=("spafl",))
def test_it_is_charged_and_timed_in_a_clients_first_round_alone(name):
    """Three rounds of two of five clients, of which the third round has met both."""
    method, settings, each, first = HANDED[name]
    rng, own = np.random.default_rng(0), np.arange(CLIENTS).repeat(4)
    x = rng.normal(size=(len(own), FEATURES)).astype(np.float32)
    y = rng.integers(CLASSES, size=len(own))
    data = from_arrays(x, y, x_test=x, y_test=y, users=own, partition="natural")

    def sampler(key, round):
        return jnp.asarray(DRAWN, jnp.int32)[round]

    method = method(MODEL, sfl.training.make_optimizer(), **settings)
    stage = sfl.Stage(method, 3, 2, sampler=sampler)
    device = clock.Device(*(np.full(CLIENTS, v) for v in (np.inf, 1000.0, np.inf, 0.0)))
    present = np.ones((CLIENTS, 1))
    system = clock.System(device, present, np.zeros(CLIENTS, int), ("phones",))
    run = sfl.run(jax.random.key(0), [stage], MODEL, data, system=system)
    train = [r for r in run.metrics if r["phase"] == "train"]
    want = np.array([[each + first] * 2, [each, each + first], [each, each]])
    assert [r["bits_down_by_client"] for r in train] == want.tolist()
    seconds = [r["seconds_by_client"] for r in train]
    np.testing.assert_allclose(seconds, want / 1000, rtol=1e-6)


def test_the_first_mask_of_nst_is_the_servers_drawn_from_the_seed():
    method = sfl.nst(MODEL, sfl.training.make_optimizer(), density=0.5)
    server = method.init(jax.random.key(1), masks.dense(*MODEL.init(jax.random.key(0))))
    mask = method.first_state(jax.random.key(2), server, None)
    jax.tree.map(np.testing.assert_array_equal, mask, server.mask)
    assert {n: p.bits for n, p in method.send_once(server).items()} == {"seed": 32}


def test_clients_alone_draw_networks_of_their_own_or_start_from_the_same():
    params, stats = MODEL.init(jax.random.key(0))
    first = {}
    for initial in ("seed", "sent"):
        optimizer = sfl.training.make_optimizer()
        method = sfl.local_only(MODEL, optimizer, initial=initial)
        server = method.init(jax.random.key(1), masks.dense(params, stats))
        states = [method.first_state(jax.random.key(k), server, None) for k in (2, 3)]
        first[initial] = [s.trained.params["fc1"]["kernel"] for s in states]
    assert not np.array_equal(*first["seed"])
    for kernel in first["sent"]:
        np.testing.assert_array_equal(kernel, params["fc1"]["kernel"])
