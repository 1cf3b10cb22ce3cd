"""FedSpa beyond the contract: its arguments, and that it is FedAvg at density 1."""

import pytest

import sparsefl_jax as sfl
from sparsefl_jax.algorithms import fedavg, fedspa
from sparsefl_jax.testing import plain_loop, small_world
from tests.averaging_by_hand import assert_close, headline
from tests.refusals import refused

MODEL, OPTIMIZER = sfl.testing.tiny_model(), sfl.training.make_optimizer()


def test_the_end_of_the_schedule_goes_with_dynamic_masks_alone():
    def make(**kwargs):
        return lambda: fedspa(MODEL, OPTIMIZER, density=0.5, **kwargs)

    refused(make(adjust_until=4), "adjust_until=4, expected None with mask_update=")
    refused(make(prune_rate=0.5), "prune_rate=0.5, expected None with mask_update=")
    refused(make(mask_update="dst"), "adjust_until=None, expected a round with")


@pytest.mark.parametrize(
    "given", [{"shared": False}, {"mask_update": "dst", "adjust_until": 2}]
)
def test_clients_tell_the_density_that_they_trained(given):
    """Kernels of 8x16 and 16x4 with 38 and 19 alive, and 20 biases, of 212."""
    world = small_world.make_world(fedspa, {"density": 0.3} | given)
    for passing in plain_loop.passings(world, 0):
        assert passing.metrics["density"] == pytest.approx((38 + 19 + 20) / 212)


@pytest.mark.slow
def test_everything_alive_is_fedavg_with_equal_weights():
    worlds = [
        small_world.make_world(factory, kwargs)
        for factory, kwargs in (
            (fedspa, {"density": 1.0}),
            (fedavg, {"weighting": "uniform"}),
        )
    ]
    states = [small_world.path(world)[0][-1].server for world in worlds]
    got, want = (headline(world, s) for world, s in zip(worlds, states, strict=True))
    assert_close((got.params, got.stats), (want.params, want.stats))
