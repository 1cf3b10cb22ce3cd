"""Programs compiled for accelerators that are not there.

Most tests need an extra, `aot-tpu` or `aot-gpu`; `pip install -e '.[aot-tpu]'`. The
others compile for the CPU's devices in a target's place.
"""

import functools
import re

import jax
import jax.numpy as jnp
import pytest

import sparsefl_jax as sfl
from benchmarks import accelerators, targets, workload
from benchmarks.accelerators import Target
from sparsefl_jax.models import lowerings
from sparsefl_jax.models.forms import fast
from tests.networks import mostly_slow
from tests.refusals import refused

WORLD = workload.Workload("mlp", 16, 24, 8, widths=(64, 32), batch_size=8)
# A pixel is a byte, a label four; 16 clients of 24 samples.
IMAGES = 16 * 24 * 28 * 28
MODEL = 4 * (784 * 64 + 64 + 64 * 32 + 32 + 32 * 10 + 10)
EXTRAS = {"v5e:2x2": "aot-tpu", "h100:4": "aot-gpu"}


@pytest.fixture(scope="module")
def compiled(pytestconfig):
    """Returns what a compiler says of a stage of a small MLP, for 4 devices."""

    @functools.cache
    def made(name):
        try:
            return accelerators.make(name)
        except ValueError as error:
            assert EXTRAS[name] in str(error)
            pytest.skip(str(error))

    @functools.cache
    def of(name, method):
        target = made(name)
        jax.config.update("jax_disable_most_optimizations", False)
        return expected(target, method)

    yield of
    quick = pytestconfig.getoption("markexpr") == "not slow"  # as in conftest.py
    jax.config.update("jax_disable_most_optimizations", quick)


def expected(target, method="fedavg", **settings):
    data = workload.make_data(WORLD)
    model = workload.make_model(WORLD, data)
    optimizer = sfl.training.make_optimizer("sgd", learning_rate=0.1)
    made = sfl.ALGORITHMS[method](model, optimizer, **workload.arguments(method))
    stage = sfl.Stage(made, 2, WORLD.cohort, 1, WORLD.batch)
    settings |= {"metric": "pooled"}
    (one,) = targets.compile_for(target, [stage], model, data, **settings)
    return one


@pytest.mark.slow
def test_what_a_compiler_says_by_hand():
    """The CPU's compiler, two devices: one sum of the model over them in a round."""
    one = expected(Target("two", jax.devices()[:2], 10**9, None), chunk=4)
    assert one.devices == 2 and one.chunk == 4
    # The sum of the model, and some numbers of each client.
    assert one.collectives["all-reduce"] >= MODEL
    assert sum(one.collectives.values()) < MODEL + 5000
    assert IMAGES + MODEL < one.memory["arguments"] < 1.1 * (IMAGES + MODEL)
    # Six FLOPs of a weight and sample of each of four clients, but none for the input.
    weights = 784 * 64 + 64 * 32 + 32 * 10
    assert one.flops >= 4 * 8 * (6 * weights - 2 * 784 * 64)
    assert one.seconds is None and one.available == 10**9
    # A step reads three weights' worth, and the loop over steps waits once for each.
    assert one.step.bytes >= 4 * 3 * MODEL and one.step.waits == 1
    text = targets.text(Target("two", jax.devices(), 0, None), [one])
    assert re.match("compiled for two by jaxlib .*, each of 2 devices:\n", text)
    assert "none by this compiler" in text and "all-reduce 21" in text


def test_a_run_has_to_fit_the_targets_memory():
    """9/10 of two devices of 10 kB."""
    small = Target("two", jax.devices()[:2], 10_000, None)
    refused(lambda: expected(small), "expected at most 18.0 kB (memory_gb, ")


@pytest.mark.parametrize(("platform", "form"), [("tpu", "plain"), ("cpu", "winograd4")])
def test_a_mesh_says_what_a_convolution_is_for(platform, form):
    device = jax.sharding.AbstractDevice("any", None, platform)
    mesh = jax.sharding.AbstractMesh((1,), ("clients",), abstract_device=device)
    x, w = jnp.ones((64, 12, 12, 20)), jnp.ones((5, 5, 20, 50))

    def jaxpr(lowering):
        form = fast(lambda x, w: lowerings.plain(x, w, 1, 0), lowering)
        return str(jax.make_jaxpr(form)(x, w))

    with jax.sharding.use_abstract_mesh(mesh):
        assert jaxpr("auto") == jaxpr(form)


@pytest.mark.parametrize("target", EXTRAS)
@mostly_slow(sfl.ALGORITHMS, quick=("fedavg", "spafl"))
def test_every_method_compiles(target, name, compiled):
    one = compiled(target, name)
    assert one.devices == 4 and one.chunk == 2
    assert 0 < one.memory["peak"] < one.available
    assert one.flops > 0 and one.step.bytes > 0
    assert one.round.kernels > one.step.kernels > 0
    assert (one.seconds is None) == (EXTRAS[target] == "aot-gpu")


@pytest.mark.parametrize("name", EXTRAS)
def test_devices_exchange_no_more_than_the_model(name, compiled):
    """FedAvg: one sum of the model in a round, and the images lie still."""
    one = compiled(name, "fedavg")
    assert MODEL <= sum(one.collectives.values()) < 1.1 * MODEL
    assert one.memory["temporaries"] < 20 * MODEL + IMAGES


def test_gpus_do_not_copy_the_rows_of_all_clients(compiled):
    """SpaFL keeps a model a client: a device holds a quarter of those of a layer.

    TPUs lay them out anew, because 64 columns do not fill their tiles.
    """
    rows = 4 * 784 * 64 * WORLD.clients // 4
    assert compiled("h100:4", "spafl").largest_copy < rows / 4


def test_equal_clients_update_weights_within_the_product_of_their_gradient(compiled):
    """A step: each of two clients reads its weights twice and writes them once."""
    one = compiled("h100:4", "fedavg")
    assert one.step.waits == one.round.waits == 0
    assert one.step.kernels <= 26 and one.round.kernels <= 190
    # The rest is images and activations. With a select after each step it is 8.8.
    assert one.step.bytes < 6 * 2 * MODEL
