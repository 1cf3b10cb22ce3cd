"""What a run cost: bits from the packets that travelled, FLOPs from the real masks.

A multiply-add is two FLOPs. The ledger counts the three passes of every layer that
multiplies (forward, input gradient, weight gradient; the first two where the weights
are frozen, see `Model`) and what an algorithm adds for its masks. It does not count
activations, pooling, normalisation and the optimizer. `flops` skips what the masks
remove; `flops_dense` sends the same samples through the dense network; `flops_executed`
is what the hardware computes in one training of each client, padding included, because
masks save no time in dense arithmetic.

The compiled round counts entries (`packets.count`), from which the host computes bits
(`charges.message_bits`); `round_record` puts both into the record that `system.sinks`
writes. `simulation/clock.py` charges the same messages on the device by the same
formula. Every record of a round holds these counts; `analysis` counts as papers do.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import Frozen, PyTree, Work
from sparsefl_jax.wire.charges import message_bits
from sparsefl_jax.wire.packets import assumptions

# Of `update`: the summed loss, the number of samples that are predicted correctly, the
# number of processed samples, and their `Work`, which becomes FLOPs; `density`, that of
# the client's own model, is optional. Others are scalars, averaged over the cohort.
METRICS = ("loss", "correct", "count", "work", "density")


def check_metrics(metrics: dict[str, Any]) -> None:
    """Refuses metrics of `update` that lack one of `METRICS`.

    Raises:
      ValueError: in one line.

    Example:
      >>> check_metrics(dict.fromkeys(("loss", "correct", "count")))
      Traceback (most recent call last):
      sparsefl_jax.UserError: the metrics of `update` lack work
    """
    if lacking := [n for n in METRICS if n not in metrics and n != "density"]:
        raise UserError(f"the metrics of `update` lack {', '.join(lacking)}")


def flops(macs: PyTree, work: Work) -> float:
    """Returns the FLOPs of summed `Work`, float64.

    Args:
      macs: multiply-adds per sample of each leaf, a tree of ints.
      work: sums over samples; leaves of any shape, which are summed too.

    Example:
      >>> work = Work({'w': 2.0}, {'w': 2.0}, {'w': 1.0}, 2.0, 0.0)
      >>> flops({'w': 100}, work)
      1000.0
    """
    passes = (work.forward, work.input_grad, work.weight_grad)
    total = sum(
        float(m) * float(np.sum(np.asarray(share, np.float64)))
        for tree in passes
        for m, share in zip(jax.tree.leaves(macs), jax.tree.leaves(tree), strict=True)
    )
    return 2.0 * total + float(np.sum(np.asarray(work.extra, np.float64)))


def macs_per_sample(model: Any) -> int:
    """Returns the multiply-adds of one sample through the dense network, a `Model`.

    Example:
      >>> from sparsefl_jax.testing import tiny_model
      >>> macs_per_sample(tiny_model())  # 8 x 16 + 16 x 4
      192
    """
    return sum(jax.tree.leaves(model.macs)) + model.frozen.macs


def flops_per_sample(model: Any) -> int:
    """Returns the FLOPs of training the dense network, a `Model`, on one sample.

    Example:
      >>> from sparsefl_jax.testing import tiny_model
      >>> flops_per_sample(tiny_model())
      1152
    """
    return 6 * macs_per_sample(model) - 2 * model.frozen.macs  # no gradient of weights


def with_frozen(metrics: dict[str, Any], frozen: Frozen | None) -> dict[str, Any]:
    """Adds the work of frozen weights to a client's metrics, on the device."""
    if frozen is None or not frozen.macs:
        return metrics
    work = metrics["work"]
    extra = work.extra + jnp.float32(2 * 2 * frozen.macs) * work.samples
    return metrics | {"work": work._replace(extra=extra)}


def _traffic(direction: str, layouts: dict, clients: Any) -> dict:
    """Returns the bits and entries of one direction, by the names of their fields."""
    count = getattr(clients, direction)
    bits = message_bits(layouts[direction], count)
    entries = {
        name: int(np.sum(np.where(c.sent, np.sum(c.entries, -1, dtype=np.int64), 0)))
        for name, c in count.items()
    }
    per_client = np.broadcast_to(bits.total, (len(clients.ids),))
    return {
        f"bits_{direction}": int(np.sum(per_client)),
        f"bits_{direction}_values": int(np.sum(bits.values)),
        f"bits_{direction}_positions": int(np.sum(bits.positions)),
        f"bits_{direction}_by_client": [int(b) for b in per_client],
        f"entries_{direction}": entries,
    }


def round_record(
    log: Any, layouts: dict, model: Any, names: list[str], batch_size: int
) -> dict[str, Any]:
    """Returns the ledger's part of a round's line of `metrics.jsonl`, plain values.

    The ledger's fields stand at the top. A method's metrics stand in `client`, as means
    over the cohort, and in `server`, so that none can take a field's place. `loss` and
    `train_accuracy` are None in a round without clients. `assumed` says why packets
    leave something uncharged; it is absent where none do.

    Args:
      log: a `round_program.RoundLog` of one round, as NumPy arrays, without places
        that hold no client.
      layouts: `{'down': ..., 'up': ...}` as `packets.layout` returns them.
      model: the network, a `Model`.
      names: paths of the layers whose masks are logged, [L].
      batch_size: samples of a minibatch, for `flops_executed`.
    """
    client = dict(log.clients.metrics)
    work = client.pop("work")
    count, loss, correct = (
        float(np.sum(client.pop(name), dtype=np.float64))
        for name in ("count", "loss", "correct")
    )
    per_sample = flops_per_sample(model)
    record = {
        "loss": loss / max(count, 1.0),
        "train_accuracy": correct / max(count, 1.0),
        "samples": int(count),
        "clients": np.asarray(log.clients.ids).tolist(),
        **_traffic("down", layouts, log.clients),
        **_traffic("up", layouts, log.clients),
        "flops": flops(model.macs, work),
        "flops_dense": per_sample * count,
        "flops_executed": float(per_sample * int(log.executed_steps) * batch_size),
        "density": float(log.density),
        "layer_density": dict(zip(names, map(float, log.layer_density), strict=True)),
        "mismatch": float(log.mismatch),
        "layer_mismatch": dict(zip(names, map(float, log.layer_mismatch), strict=True)),
    }
    if math.isnan(correct):  # of a task without classes
        del record["train_accuracy"]
    if not len(log.clients.ids):  # there is nobody to average over
        client = {}
        record |= {"loss": None, "train_accuracy": None}
    sections = {
        "client": {k: float(np.mean(v, dtype=np.float64)) for k, v in client.items()},
        "server": {name: float(value) for name, value in log.server.items()},
        "assumed": assumptions(layouts),
    }
    return record | {name: section for name, section in sections.items() if section}
