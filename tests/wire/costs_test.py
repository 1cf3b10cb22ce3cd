"""The ledger, and the counts of the views of its packets."""

import numpy as np

from sparsefl_jax.core import types
from sparsefl_jax.models import Model
from sparsefl_jax.simulation import round_program
from sparsefl_jax.wire import ledger, packets

NETWORK = Model(None, None, {"w": 4})


def test_flops_follow_the_masks():
    macs = {"a": 10, "b": 3}
    share = {"a": np.float32(4.0), "b": np.float32(2.0)}
    dense = {"a": np.float32(8.0), "b": np.float32(2.0)}
    work = types.Work(share, share, dense, np.float32(8.0), np.float32(5.0))
    # 2 (forward 46 + input gradient 46 + weight gradient 86) + 5
    assert ledger.flops(macs, work) == 361.0


def round_log(counts, correct, client=None, server=None):
    """Returns a round of a network {'w': [4]} that logged only metrics."""
    everyone = np.ones(len(counts), bool)
    whole = packets.Count(np.full((len(counts), 1), 4, np.int32), everyone, everyone)
    number, extra = np.array(counts, np.float32), np.zeros(len(counts), np.float32)
    sums = {"count": counts, "correct": correct, "loss": everyone}
    sums = {name: np.array(v, np.float32) for name, v in sums.items()}
    sums["work"] = types.Work(*3 * [{"w": number}], number, extra)
    ids = np.arange(len(counts), dtype=np.int32)
    clients = round_program.PerClient(
        ids, sums | (client or {}), {"p": whole}, {"p": whole}, ()
    )
    fields = dict.fromkeys(round_program.RoundLog._fields, ())
    fields |= dict(layer_density=np.ones(1), layer_mismatch=np.zeros(1))
    numbers = dict(executed_steps=2, density=1.0, mismatch=0.0, finite=True)
    fields |= {name: np.array(v) for name, v in numbers.items()}
    return round_program.RoundLog(**fields | dict(clients=clients, server=server or {}))


def record_of(log):
    layout = packets.layout({"p": packets.Packet({"w": np.zeros(4, np.float32)})})
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
