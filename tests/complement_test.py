"""Complement Sparsification: its invariants, its paper's tables of FLOPs."""

import jax
import numpy as np
import pytest

from sparsefl_jax import contract_world as at
from sparsefl_jax import costs
from sparsefl_jax.algorithms import complement
from sparsefl_jax.message import unpack_model
from sparsefl_jax.models import build
from tests.complement_by_hand import DENSITY, RATIO

# Tables 2 to 5: emergent client sparsity of every layer, and of the model; FLOPs saved.
IC_CLIENTS = {
    0.5: ((0.569, 0.842, 0.917, 0.920, 0.756), 0.904),
    0.6: ((0.528, 0.788, 0.837, 0.863, 0.722), 0.843),
    0.7: ((0.587, 0.800, 0.791, 0.853, 0.721), 0.828),
    0.8: ((0.788, 0.900, 0.868, 0.909, 0.698), 0.891),
}
IC_SAVED = {
    0.5: ((19.0, 28.1, 30.6, 30.7, 25.1), 29.1),
    0.6: ((24.3, 32.9, 34.6, 35.4, 30.6), 33.6),
    0.7: ((32.9, 40.0, 39.7, 41.7, 37.2), 39.6),
    0.8: ((46.3, 50.0, 48.9, 50.3, 43.1), 49.3),
}
SA_CLIENTS = {
    0.5: ((0.933, 0.887), 0.932),
    0.6: ((0.885, 0.851), 0.884),
    0.7: ((0.841, 0.833), 0.841),
    0.8: ((0.812, 0.810), 0.812),
}
SA_SAVED = {
    0.5: ((31.1, 29.1), 31.1),
    0.6: ((36.1, 34.5), 36.1),
    0.7: ((41.3, 40.5), 41.3),
    0.8: ((47.0, 46.3), 47.0),
}
IC_FLOPS = (1_168_224, 13_381_824, 17_916_096, 614_700, 37_386)
SA_FLOPS = (147_744, 585)
# The paper's dense layer of SA counts its 32 biases as multiply-adds.
SA_LAYERS = ((768 * 32 + 32, 32), (96, 3))
TABLES = {
    "ic": (IC_FLOPS, 33_118_230, IC_CLIENTS, IC_SAVED),
    "sa": (SA_FLOPS, 148_329, SA_CLIENTS, SA_SAVED),
}


def layers(name):
    """(multiply-adds, outputs) of every layer, and the sizes of the kernels."""
    if name == "sa":
        return SA_LAYERS, (768 * 32, 96)
    model = build("ic", 62, (28, 28, 1))
    shapes, _ = jax.eval_shape(model.init, jax.random.key(0))
    order = ("conv1", "conv2", "conv3", "fc1", "fc2")
    found = [(model.macs[n]["kernel"], shapes[n]["bias"].size) for n in order]
    return found, [shapes[n]["kernel"].size for n in order]


@pytest.mark.parametrize("name", TABLES)
def test_flops_of_tables_4_and_5(name):
    per_layer, whole, clients, saved = TABLES[name]
    found, sizes = layers(name)
    flops = [costs.complement_flops(*layer) for layer in found]
    assert tuple(flops) == per_layer and sum(flops) == whole
    for p, (sparsity, full) in clients.items():
        assert np.average(sparsity, weights=sizes) == pytest.approx(full, abs=1.1e-3)
        shares = [
            100 * costs.complement_saving(*layer, 1 - p, 1 - c)
            for layer, c in zip(found, sparsity, strict=True)
        ]
        printed, printed_full = saved[p]
        np.testing.assert_allclose(shares, printed, rtol=0, atol=0.0501)
        mean = np.average(shares, weights=flops)
        assert mean == pytest.approx(printed_full, abs=0.0501)


def test_supports_of_server_and_clients_do_not_meet():
    world = at.make_world(complement, {"density": DENSITY})
    for round in range(4):
        for passing in at.passings(world, round):
            down, up = (unpack_model(m) for m in (passing.down, passing.up))
            pairs = zip(
                jax.tree.leaves(down.params), jax.tree.leaves(up.params), strict=True
            )
            met = [bool(np.any((d != 0) & (u != 0))) for d, u in pairs]
            assert any(met) == (round == 0)


def test_logged_client_density_is_that_of_the_uplink():
    world = at.make_world(complement, {"density": DENSITY})
    passing = at.passings(world, 1)[0]
    sent, metrics = unpack_model(passing.up).params, passing.metrics
    kernels = {name: np.asarray(sent[name]["kernel"]) for name in ("fc1", "fc2")}
    for name, kernel in kernels.items():
        logged = metrics[f"client_density/{name}/kernel"]
        assert logged == pytest.approx(np.mean(kernel != 0), abs=1e-6)
    every = np.concatenate([k.ravel() for k in kernels.values()])
    assert metrics["client_density"] == pytest.approx(np.mean(every != 0), abs=1e-6)


def test_both_models_are_deployed_the_pruned_one_first():
    world = at.make_world(complement, {"density": DENSITY})
    server = at.path(world)[0][-1].server
    deployed = world.algorithm.deploy(world.key, server, None, None)
    assert list(deployed) == ["global", "unpruned"]
    pruned, whole = (m.params["fc1"]["kernel"] for m in deployed.values())
    assert np.mean(pruned != 0) < DENSITY + 0.05 < np.mean(whole != 0)


@pytest.mark.parametrize(
    "kwargs, named",
    [
        ({"density": 0.0}, "density=0.0"),
        ({"density": 1.1}, "density=1.1"),
        ({"density": 0.5, "aggregation_ratio": 0.0}, "aggregation_ratio=0.0"),
    ],
)
def test_refuses(kwargs, named):
    with pytest.raises(ValueError, match=named):
        complement(None, None, **kwargs)
    assert RATIO == 1.5  # the default that the reference computes with
