"""A virtual clock: how long clients take on devices of their own, and who is late.

A client takes

    FLOPs / (FLOP/s) + bits down / (bit/s) + bits up / (bit/s) + latency

seconds for a round. The FLOPs are the ledger's, at the client's masks, and the bits are
those of its messages once encoded. A round closes when its slowest client is done, or
at a deadline. A client that finishes later has trained and is charged for it, but its
term of the sum is 0; it can be drawn again in the next round. The server takes no time.

`systems` has the devices.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.core.types import AnyArray, Array, Key, PyTree, Work
from sparsefl_jax.data.batching import samples_per_round
from sparsefl_jax.wire import packets
from sparsefl_jax.wire.arithmetic import DEVICE
from sparsefl_jax.wire.charges import message_bits

ROUNDING = 1e-5  # what float32 may add to a time, as a share


class Device(NamedTuple):
    """What a client's device does in a second; [N] for all clients."""

    flops: AnyArray  # float32, FLOP/s in training
    down: AnyArray  # float32, bit/s
    up: AnyArray  # float32, bit/s
    latency: AnyArray  # float32, seconds of a round beside computation and transfers


class System(NamedTuple):
    """The devices of all clients, and when a round closes.

    Attributes:
      device: [N].
      available: [N, P] float, the chance that a client can be drawn in a round; it
        repeats after P rounds.
      tier: [N] int, the place of each client's tier in `tiers`.
      tiers: the tiers' names.
      deadline: seconds after which a round closes; None: with its slowest client.
      quantile: sets the deadline instead: the share of all clients that would be done
        with a round of the dense network by then, in (0, 1].
    """

    device: Device
    available: np.ndarray
    tier: np.ndarray
    tiers: tuple[str, ...]
    deadline: float | None = None
    quantile: float | None = None


class Clock(NamedTuple):
    """What a round reads of a system."""

    device: Device  # [N]
    deadline: AnyArray  # shape=(), float32, seconds; inf: none


class Time(NamedTuple):
    """The time of a client in a round; [K] for a cohort."""

    seconds: Array  # shape=(), float32
    late: Array  # shape=(), bool: done after the round has closed


def seconds(device: Device, flops: Any, down: Any, up: Any) -> Any:
    """Returns the time of a round on a device.

    Args:
      device: of the client, or of several.
      flops: that training takes.
      down, up: bits of the messages.

    Example:
      >>> phone = Device(flops=1e9, down=1e6, up=5e5, latency=0.5)
      >>> seconds(phone, flops=3e9, down=2e6, up=1e6)
      7.5
    """
    return flops / device.flops + down / device.down + up / device.up + device.latency


def measure(
    clock: Clock,
    index: Array,
    macs: PyTree,
    work: Work,
    downlink: packets.Message,
    uplink: packets.Message,
) -> Time:
    """Measures a client's round, on the device.

    Args:
      clock: of the run.
      index: the client, shape=(), int32.
      macs: as `Model.macs`.
      work: of the client's training.
      downlink, uplink: its messages.
    """
    device = jax.tree.map(lambda v: v[index], clock.device)
    down, up = (
        message_bits(packets.layout(m), packets.count(m), DEVICE).total
        for m in (downlink, uplink)
    )
    # As `ledger.flops`, of one client and in float32.
    passes = (work.forward, work.input_grad, work.weight_grad)
    shares = zip(jax.tree.leaves(macs), *map(jax.tree.leaves, passes), strict=True)
    total = sum((jnp.float32(m) * sum(each) for m, *each in shares), jnp.float32(0))
    took = seconds(device, 2 * total + work.extra, down, up)
    return Time(took, took > clock.deadline)


def of_stage(
    system: System | None, stage: Stage, flops: int, sizes: np.ndarray, weights: int
) -> Clock | None:
    """Returns the clock of a stage; None without a system.

    There is no deadline for a cohort of one: without its one client the round would
    have no result. A quantile is that of every client's time for a round of FedAvg, so
    that the deadline is the same for all methods. Its samples are those that
    `samples_per_round` counts; what travels only in a client's first round does not.

    Args:
      system: of the run.
      stage: the stage.
      flops: of training on a sample, see `ledger.flops_per_sample`.
      sizes: [N], the clients' training samples; without any a client is unseen.
      weights: parameters and statistics of the network.
    """
    if system is None:
        return None
    deadline = system.deadline
    if system.quantile is not None:
        each = float(flops) * samples_per_round(stage, sizes)
        each = seconds(system.device, each, 32.0 * weights, 32.0 * weights)
        done = np.quantile(each[sizes > 0], system.quantile, method="inverted_cdf")
        deadline = done * (1 + ROUNDING)
    if deadline is None or stage.cohort_size == 1:
        deadline = np.inf
    device = Device(*(np.asarray(v, np.float32) for v in system.device))
    return Clock(device, np.float32(deadline))


def presence(system: System | None, sizes: ArrayLike = 1) -> Callable | None:
    """Returns the available clients of a round; None if all always are.

    Args:
      system: of the run.
      sizes: [N], the clients' training samples. Those without any never are.

    Returns:
      `(key, round) -> [N] bool`.
    """
    available = 1.0 if system is None else system.available
    available = np.where(np.reshape(sizes, (-1, 1)) > 0, available, 0)
    if np.all(available >= 1):
        return None
    chance = jnp.asarray(available, jnp.float32)

    def present(key: Key, round: Array) -> Array:
        drawn = jax.random.uniform(jax.random.fold_in(key, round), chance.shape[:1])
        return drawn < chance[:, round % chance.shape[1]]

    return present


def members(system: System | None) -> dict[str, np.ndarray]:
    """Returns the ids of each tier's clients by its name; {} without a system."""
    tier, names = (system.tier, system.tiers) if system else (np.array(()), ())
    return {name: np.flatnonzero(tier == i) for i, name in enumerate(names)}


def record(system: System, clock: Clock, log: Any) -> dict[str, Any]:
    """Returns what the clock adds to the record of a round.

    Args:
      system: of the run.
      clock: of the stage.
      log: a `round_program.RoundLog` of one round, NumPy, without empty places.

    Returns:
      `hours` that the round took; `dropped`, the number of uplinks that came too late;
      `seconds_by_client` in the order of `clients`; and, by the name of a tier, how
      many of its clients were `drawn` and `dropped`.
    """
    took, late = (np.asarray(v) for v in log.clients.time)
    closed = min(float(took.max(initial=0.0)), float(clock.deadline))
    of_client = system.tier[log.clients.ids]
    drawn = {name: of_client == i for i, name in enumerate(system.tiers)}
    return {
        "hours": closed / 3600,
        "dropped": int(late.sum()),
        "seconds_by_client": [float(s) for s in took],
        "tiers": {
            name: {"drawn": int(members.sum()), "dropped": int(late[members].sum())}
            for name, members in drawn.items()
        },
    }
