"""The ledger, and the counts of the views of its packets."""

import numpy as np
import pytest

from sparsefl_jax.analysis.flash import values_only_bits
from sparsefl_jax.models import Model
from sparsefl_jax.simulation import round_program
from sparsefl_jax.training import local
from sparsefl_jax.wire import ledger, packets

# A packet of 6 and 4 values, from three clients of whom the second sent nothing.
LAYOUT = {"up": packets.Layout(("w", "b"), ((2, 3), (4,)), 32, "none", True)}
SENT = np.array([True, False, True])
NETWORK = Model(None, None, {"w": 4})
COUNT = packets.Count(np.array([[5, 4], [6, 4], [2, 4]]), np.zeros(3, bool), SENT)


@pytest.mark.parametrize(("given", "words"), [({}, 1), ({"words": 2}, 2)])
def test_values_only_counts_what_was_sent(given, words):
    bits = values_only_bits(LAYOUT, {"up": COUNT}, ("up",), **given)
    assert bits == words * 32 * (9 + 6)


def test_flops_follow_the_masks():
    macs = {"a": 10, "b": 3}
    share = {"a": np.float32(4.0), "b": np.float32(2.0)}
    dense = {"a": np.float32(8.0), "b": np.float32(2.0)}
    work = local.Work(share, share, dense, np.float32(8.0), np.float32(5.0))
    # 2 (forward 46 + input gradient 46 + weight gradient 86) + 5
    assert ledger.flops(macs, work) == 361.0


def round_log(counts, correct, client=None, server=None):
    """Returns a round of a network {'w': [4]} that logged only metrics."""
    whole = packets.Count(
        np.full((len(counts), 1), 4, np.int32),
        np.ones(len(counts), bool),
        np.ones(len(counts), bool),
    )
    number, extra = np.array(counts, np.float32), np.zeros(len(counts), np.float32)
    work = local.Work(*3 * [{"w": number}], number, extra)
    sums = {"count": counts, "correct": correct, "loss": np.ones(len(counts))}
    sums = {name: np.array(v, np.float32) for name, v in sums.items()}
    return round_program.RoundLog(
        clients=round_program.PerClient(
            ids=np.arange(len(counts), dtype=np.int32),
            metrics={**sums, "work": work, **(client or {})},
            down={"p": whole},
            up={"p": whole},
            time=(),
        ),
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
    layout = packets.layout(
        {"p": packets.Packet({"w": np.zeros(4, np.float32)}, **packet)}
    )
    layouts = {"down": layout, "up": layout}
    return ledger.round_record(log, layouts, NETWORK, ["w"], batch_size=8)


def test_a_methods_metrics_take_no_field_of_the_ledger():
    """Two clients and a packet of 4 values each way: 2 * 4 * 32 bits, always."""
    told = {name: np.array([7.0, 8.0], np.float32) for name in ("bits_up", "clients")}
    log = round_log([3, 5], [1, 4], told, {"flops": np.float32(-1), "density": 2.0})
    record = record_of(log)
    assert record["bits_up"] == record["bits_down"] == 256
    assert record["clients"] == [0, 1]
    assert record["flops"] == 2 * 3 * 4 * (3 + 5)  # FLOPs of a multiply-add, passes
    assert record["density"] == 1.0
    assert record["train_accuracy"] == 5 / 8  # right samples over samples
    assert record["client"] == {"bits_up": 7.5, "clients": 7.5}
    assert record["server"] == {"flops": -1.0, "density": 2.0}
    assert "assumed" not in record


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
