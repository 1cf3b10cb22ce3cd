"""How a stage is cut into segments."""

import math
from typing import NamedTuple

import numpy as np

from sparsefl_jax.core.types import PyTree
from sparsefl_jax.runs.setup import Setup
from sparsefl_jax.simulation import placement, store
from sparsefl_jax.system import hardware
from sparsefl_jax.wire import ledger

# Effective FLOP/s per device that size a segment; only responsiveness depends on it.
GUESSED_RATE = {"cpu": 5e10, "gpu": 5e12, "tpu": 5e12}
SEGMENT_SECONDS = 4.0


class Pace(NamedTuple):
    """How a stage is cut into segments."""

    length: int  # rounds of a compiled loop, at most
    working: int | None  # rows of a working set; None if all are on the device
    where: str  # rows live: 'device', 'host' or 'disk'


def pace(setup: Setup, index: int, rows: PyTree) -> Pace:
    """Cuts a stage into segments of some seconds whose rows fit the devices.

    Their length divides the stage, the evaluation interval and the observed rounds, so
    that these fall on segment ends.

    Args:
      setup: the run.
      index: which of its stages.
      rows: all clients', arrays or shapes.
    """
    model, data, memory_gb = setup.model, setup.data, setup.memory_gb
    stage = setup.stages[index]
    devices = placement.stage_devices(stage, setup.devices)
    samples = stage.cohort_size * stage.epochs * float(np.mean(data.train.size))
    flops = 6.0 * ledger.macs_per_sample(model.macs) * samples
    seconds = flops / (GUESSED_RATE.get(devices[0].platform, 5e10) * len(devices))
    most = max(1, int(SEGMENT_SECONDS / max(seconds, 1e-9)))
    memory = hardware.memory(devices) if memory_gb is None else 1e9 * memory_gb
    where = store.chosen(setup.client_store, rows, memory, len(devices))
    if where != "device":
        most = min(most, store.most_rounds(rows, stage.cohort_size, memory))
    common = math.gcd(stage.num_rounds, setup.eval_every, *setup.observed(index))
    length = max(d for d in range(1, common + 1) if common % d == 0 and d <= most)
    size = len(data.train.size), stage.cohort_size, length, len(devices)
    working = None if where == "device" else store.working_size(*size)
    return Pace(length, working, where)
