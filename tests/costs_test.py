"""The papers' figures as views over simulated packets, and the ledger itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax import checks, codec, costs, local, models, simulate
from sparsefl_jax.algorithms import fedavg, pdst, sensitivity, spdst
from sparsefl_jax.algorithms.flash.common import Server
from sparsefl_jax.types import Batches, ClientInfo, Context, SparseModel

RESNET = ("*conv*/kernel", "*shortcut/kernel")


def abstract_model(name, shape, **kwargs):
    model = models.build(name, 10 if name != "femnist_cnn" else 62, shape, **kwargs)
    params, stats = jax.eval_shape(model.init, jax.random.key(0))
    mask = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, bool), params)
    return model, SparseModel(params, mask, stats)


def downlink(algorithm, sparse, last_round=-1):
    """Layouts and counts of one client's downlink; the masks are really drawn."""
    info = ClientInfo(jnp.int32(0), jnp.int32(500), jnp.float32(1))
    ctx = Context(jnp.int32(0), jnp.int32(last_round), info)

    @jax.jit
    def send(key):
        zeros = jax.tree.map(lambda v: jnp.zeros(v.shape, v.dtype), sparse)
        zeros = zeros._replace(mask=jax.tree.map(lambda m: ~m, zeros.mask))
        server = algorithm.init(key, zeros)
        return codec.count(algorithm.broadcast(key, ctx, server))

    def message(key):
        zeros = jax.tree.map(lambda v: jnp.zeros(v.shape, v.dtype), sparse)
        return algorithm.broadcast(key, ctx, algorithm.init(key, zeros))

    layout = codec.layout(jax.eval_shape(message, jax.random.key(0)))
    return layout, jax.device_get(send(jax.random.key(0)))


def values_only(algorithm, sparse, packets, words=1):
    layout, count = downlink(algorithm, sparse)
    return costs.values_only_bits(layout, count, packets, words=words)


@pytest.fixture(scope="module")
def resnet():
    return abstract_model("resnet18", (32, 32, 3))[1]


def dense_bits(sparse):
    return values_only(fedavg(None, local.make_optimizer()), sparse, ("params",))


def sparse_bits(sparse, density, prunable, words=1):
    method = pdst(None, None, density=density, prunable=prunable)
    if words == 1:
        return values_only(method, sparse, ("weights", "dense"))
    layout, count = downlink(method, sparse)
    weights = costs.values_only_bits(layout, count, ("weights",), words=words)
    return weights + costs.values_only_bits(layout, count, ("dense",))


def test_flash_saving_on_resnet18(resnet):
    dense = dense_bits(resnet)
    assert dense == 32 * 11_173_962
    assert round(costs.saving(dense, sparse_bits(resnet, 0.05, RESNET)), 1) == 19.5
    at_10 = costs.saving(dense, sparse_bits(resnet, 0.1, RESNET))
    assert int(10 * at_10) / 10 == 9.8  # printed truncated


def test_zerofl_figures_and_the_ratio_of_flash_to_them(resnet):
    dense = dense_bits(resnet)
    low = costs.saving(dense, sparse_bits(resnet, 0.3, RESNET, words=2))
    high = costs.saving(dense, sparse_bits(resnet, 0.25, RESNET, words=2))
    printed = int(10 * low) / 10, int(10 * high) / 10
    assert printed == (1.6, 1.9)
    flash = round(costs.saving(dense, sparse_bits(resnet, 0.05, RESNET)), 1)
    assert round(flash / printed[1], 2) == 10.26


def test_flash_saving_on_femnist():
    _, sparse = abstract_model("femnist_cnn", (28, 28, 1))
    prunable = ("conv2/kernel", "fc1/kernel")
    saving = costs.saving(dense_bits(sparse), sparse_bits(sparse, 0.05, prunable))
    assert dense_bits(sparse) == 32 * 6_603_710
    assert round(saving, 1) == 14.6


def test_ledger_charges_more_than_the_papers_view(resnet):
    layout, count = downlink(pdst(None, None, density=0.05, prunable=RESNET), resnet)
    bits = codec.bits(layout, count)
    view = costs.values_only_bits(layout, count, ("weights", "dense"))
    statistics = 2 * 4_800 * 32
    assert int(bits.values) == view + statistics
    assert int(bits.positions) == 11_159_232  # a bitmap of the prunable weights


def test_stage_one_sends_a_word_per_layer_and_client(resnet):
    method = sensitivity(None, local.make_optimizer(), density=0.1, prunable=RESNET)
    model, _ = abstract_model("resnet18", (32, 32, 3))
    method = sensitivity(
        local.cross_entropy(model), local.make_optimizer(), density=0.1, prunable=RESNET
    )
    rows = Batches(
        jax.ShapeDtypeStruct((8, 32, 32, 3), jnp.float32),
        jax.ShapeDtypeStruct((8,), jnp.int32),
        jax.ShapeDtypeStruct((10, 2, 4), jnp.int32),
        jax.ShapeDtypeStruct((10, 2, 4), jnp.float32),
        jax.ShapeDtypeStruct((), jnp.int32),
    )

    def uplink(key, model, batches):
        ctx, server = checks.example_context(), method.init(key, model)
        down = method.broadcast(key, ctx, server)
        return method.update(key, ctx, down, (), batches)[0]

    shapes = jax.eval_shape(uplink, jax.random.key(0), resnet, rows)
    layout = codec.layout(shapes)
    entries = np.array([[20]] * 10, np.int32)
    sent = codec.Count(entries, np.ones(10, bool), np.ones(10, bool))
    assert layout["density"].shapes == ((20,),)
    assert int(codec.bits(layout, {"density": sent}).total.sum()) == 6_400


def test_positions_are_charged_once_per_mask(resnet):
    method = spdst(None, None, prunable=RESNET)
    for last_round, positions in ((-1, 11_159_232), (0, 0)):
        layout, count = downlink(method, resnet, last_round)
        assert int(codec.bits(layout, count).positions) == positions


def test_server_states_are_what_the_views_read(resnet):
    server = jax.eval_shape(spdst(None, None).init, jax.random.key(0), resnet)
    assert isinstance(server, Server)


def test_flops_follow_the_masks():
    macs = {"a": 10, "b": 3}
    share = {"a": np.float32(4.0), "b": np.float32(2.0)}
    dense = {"a": np.float32(8.0), "b": np.float32(2.0)}
    work = local.Work(share, share, dense, np.float32(5.0))
    # 2 (forward 46 + input gradient 46 + weight gradient 86) + 5
    assert costs.flops(macs, work) == 361.0
    assert costs.macs_per_sample(macs) == 13


def test_work_of_a_mask_is_samples_times_density():
    mask = {"w": jnp.array([[True, False], [False, False]]), "b": jnp.ones(2, bool)}
    work = local.work(jnp.float32(8), mask)
    assert float(work.forward["w"]) == 2.0
    assert float(work.weight_grad["b"]) == 8.0


def round_log(counts, correct, client=None, server=None):
    """A round of a network {'w': [4]} in which nothing but metrics was logged."""
    whole = codec.Count(
        np.full((len(counts), 1), 4, np.int32),
        np.ones(len(counts), bool),
        np.ones(len(counts), bool),
    )
    share = {"w": np.array(counts, np.float32)}
    work = local.Work(share, share, share, np.zeros(len(counts), np.float32))
    sums = {"count": counts, "correct": correct, "loss": np.ones(len(counts))}
    sums = {name: np.array(v, np.float32) for name, v in sums.items()}
    return simulate.RoundLog(
        ids=np.arange(len(counts), dtype=np.int32),
        clients={**sums, "work": work, **(client or {})},
        down={"p": whole},
        up={"p": whole},
        server=server or {},
        executed_steps=np.int32(2),
        density=np.float32(1),
        layer_density=np.ones(1, np.float32),
        mismatch=np.float32(0),
        layer_mismatch=np.zeros(1, np.float32),
        finite=np.bool_(True),
        masks=(),
    )


def record_of(log, **packet):
    layout = codec.layout({"p": codec.Packet({"w": np.zeros(4, np.float32)}, **packet)})
    layouts = {"down": layout, "up": layout}
    return costs.round_record(log, layouts, {"w": 4}, ["w"], batch_size=8)


def test_a_methods_metrics_take_no_field_of_the_ledger():
    """Two clients, each way a packet of 4 values: 2 * 4 * 32 bits, whatever is told."""
    told = {name: np.array([7.0, 8.0], np.float32) for name in ("bits_up", "clients")}
    log = round_log([3, 5], [1, 4], told, {"flops": np.float32(-1), "density": 2.0})
    record = record_of(log)
    assert record["bits_up"] == record["bits_down"] == 256
    assert record["clients"] == [0, 1]
    assert record["flops"] == 2 * 3 * 4 * (3 + 5)  # FLOPs of a multiply-add, passes
    assert record["density"] == 1.0
    assert record["client"] == {"bits_up": 7.5, "clients": 7.5}
    assert record["server"] == {"flops": -1.0, "density": 2.0}
    assert "assumed" not in record


def test_train_accuracy_is_right_samples_over_samples():
    assert record_of(round_log([3, 5], [1, 4]))["train_accuracy"] == 5 / 8


def test_a_cohorts_samples_are_summed_exactly():
    """In float32 2 ** 24 + 1 is 2 ** 24."""
    counts = [2**24, 1, 1, 1]
    record = record_of(round_log(counts, counts))
    assert record["samples"] == 2**24 + 3
    assert record["train_accuracy"] == 1.0


def test_a_record_says_what_is_assumed_to_be_free():
    record = record_of(round_log([1], [0]), bits=0, assumed="the paper does not")
    assert record["bits_up"] == 0
    assert record["assumed"] == {p: "the paper does not" for p in ("down/p", "up/p")}
