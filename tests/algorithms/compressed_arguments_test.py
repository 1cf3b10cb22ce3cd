"""What `compressed` refuses, and its configuration."""

from types import SimpleNamespace

import numpy as np
import pytest

from configs import compressed_cifar10
from sparsefl_jax.algorithms import compressed
from sparsefl_jax.algorithms.private import private
from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.runs.config import build
from sparsefl_jax.runs.config.defaults import freeze
from sparsefl_jax.runs.setup import Setup, check_setup
from sparsefl_jax.testing import small_world, tiny_model
from sparsefl_jax.training import local
from sparsefl_jax.wire import compressors
from tests.refusals import refused

REFUSED = [
    ({"up": "top"}, "up='top' (did you mean 'topk'?), expected one of"),
    ({"down": "randomk"}, "down='randomk', expected one of topk, stc, sign"),
    ({"feedback": "EF"}, "feedback='EF', expected one of ef, ef21, none"),
    ({"bits": 4}, "bits=4, expected None with up='topk', down=None"),
    ({"up": "sign", "density": 0.1}, "density=0.1, expected None with up='sign'"),
    ({"index": "none"}, "index='none', expected one of bitmap, coo, csr, golomb"),
    (
        {"up": "majority", "feedback": "ef"},
        "feedback='ef', expected one of none",
    ),
    ({"up": "majority"}, "server_optimizer=None, expected one"),
    ({"feedback": "ef21"}, "clients=None, expected their number"),
    ({"feedback": "ef21", "clients": 0}, "clients=0, expected at least 1"),
    ({"clients": 5}, "clients=5, expected None with feedback='ef'"),
    ({"start": "gradient"}, "start='gradient', expected one of zero"),
    (
        {"feedback": "ef21", "clients": 5, "weighting": "examples"},
        "weighting='examples', expected one of None, uniform",
    ),
    ({"feedback": "none", "stale": "reset"}, "stale='reset', expected one of keep"),
]


@pytest.mark.parametrize(("given", "said"), REFUSED, ids=lambda v: str(v)[:40])
def test_refuses(given, said):
    refused(
        lambda: compressed(small_world.tiny_model(), local.make_optimizer(), **given),
        said,
    )


def clients(number):
    return SimpleNamespace(train=SimpleNamespace(size=np.ones(number)))


def test_ef21_is_refused_for_another_number_of_clients():
    """The server's estimate moves by 1 / clients of each change."""
    model, optimizer = small_world.tiny_model(), local.make_optimizer()
    ef21 = compressed(model, optimizer, feedback="ef21", clients=3)
    for method in (ef21, private(ef21, clip=1.0, noise_multiplier=1.0)):
        stage = Stage(method, 2, 2)
        refused(
            lambda s=stage: check_setup(Setup([s], model, clients(4))),
            "clients=3, expected those of the run, 4",
        )
    check_setup(Setup([Stage(ef21, 2, 2)], model, clients(3)))


def test_every_rival_of_the_configuration_builds():
    for rival in compressed_cifar10.RIVALS:
        config = compressed_cifar10.get_config(f"mini,{rival}")
        (stage,) = build.build_stages(freeze(config), small_world.tiny_model())
        assert stage.num_rounds == 60
    config = compressed_cifar10.get_config("ef21")
    config.num_clients = 7
    assert config.algorithm.clients == 7


def test_the_memory_of_a_compressor_of_ones_own_is_checked():
    own = compressors.topk(0.5)._replace(feedback="EF")
    with pytest.raises(ValueError, match="feedback='EF'.*expected one of"):
        compressed(tiny_model(), local.make_optimizer(), up=own)
