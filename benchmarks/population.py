"""Measures the cost of a round as the population grows from a hundred to a million.

    python -m benchmarks population                  # 2 minutes
    python -m benchmarks population --only stateless --most 10000

FedAvg trains a small MLP on random images, with 20 clients a round and a batch of 16
each, in segments of 20 rounds: a run, which draws cohorts, reads and writes rows and
records. Clients keep nothing, or their momentum, which is as large as the network: on
the host, or on disk, which holds only the clients that took part. All clients' images
are rows of one small array. Every case runs in a process of its own. The table has its
peak of resident memory. With rows on disk, it counts mapped pages, which the system
reclaims on demand. The first segment has
start and compilation.
"""

import time
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np

import sparsefl_jax as sfl
from benchmarks import measure
from sparsefl_jax.data import federated
from sparsefl_jax.simulation import disk_store
from sparsefl_jax.system import hardware

COHORT, ROUNDS, BATCH = 20, 20, 16
SHAPE, IMAGES = (28, 28, 1), 4096


class Case(NamedTuple):
    """A population; the hidden layer's `width` decides how much a client keeps."""

    kind: str
    clients: int
    width: int = 20
    where: str = "device"


CASES = [
    *(Case("stateless", 10**n) for n in range(2, 7)),
    *(Case("host", 10**n, where="host") for n in (2, 3, 4, 5)),
    *(Case("disk", 10**n, where="disk") for n in (4, 5, 6)),
    *(Case("disk", 10**n, 320, "disk") for n in (5, 6)),
]
KINDS = ("stateless", "host", "disk")
CHOICES = {"only": KINDS}


def run(only=KINDS, most=10**6, repeats=7) -> Iterator[dict]:
    """Yields a row for each case with at most `most` clients."""
    for case in CASES:
        if case.kind in only and case.clients <= most:
            yield measure.apart(one, case, ROUNDS, repeats)


def one(case: tuple, rounds: int, repeats: int) -> dict:
    """Times segments of a run in this process, and measures its memory."""
    kind, num_clients, width, where = case
    model = sfl.models.build("mlp", 10, SHAPE, widths=(width,))
    optimizer = sfl.training.make_optimizer("sgd", learning_rate=0.01, momentum=0.9)
    method = sfl.fedavg(model, optimizer, keep_optimizer=kind != "stateless")
    stage = sfl.Stage(method, (repeats + 1) * rounds, COHORT, 1, BATCH)
    data = population(num_clients)
    settings = {"eval_every": rounds, "client_store": where, "metric": "pooled"}
    seconds, begun = [], time.perf_counter()
    for segment in sfl.segments(jax.random.key(0), [stage], model, data, **settings):
        seconds.append(time.perf_counter() - begun)
        clients, held = segment.snapshot.state.clients, on_devices()
        begun = time.perf_counter()
    on_disk = isinstance(clients, disk_store.Rows)
    kept = on_disk and clients.num_bytes
    rows = jax.tree.leaves(clients.take(np.arange(1)) if on_disk else clients)
    each = sum(v.nbytes // len(v) for v in rows)
    peak = hardware.peak_memory(jax.devices())["process"]
    memory = {"peak": peak, "arrays on devices": held, "files": kept}
    return (
        {"clients": num_clients, "kept by each, KiB": each / 2**10}
        | {"where": where if each else "-"}
        | measure.times("ms a round", 1e3 / rounds, np.array(seconds[1:]))
        | {"first segment, s": seconds[0]}
        | {f"{what}, MiB": size / 2**20 for what, size in memory.items()}
    )


def population(num_clients: int):
    """Returns clients of 16 images each, drawn from images that all clients share."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (IMAGES, *SHAPE), dtype=np.uint8)
    y = rng.integers(0, 10, IMAGES)
    two_clients = sfl.from_arrays(
        x, y, x_test=x[:10], y_test=y[:10], num_clients=2, test_split="pooled"
    )
    index = rng.integers(0, IMAGES, (num_clients, BATCH), dtype=np.int32)
    size = np.full(num_clients, BATCH, np.int32)
    return two_clients._replace(train=federated.Rows(index, size))


def on_devices() -> int:
    """Returns the bytes of live arrays on all devices, or the peak if it is known."""
    shards = (v.addressable_shards for v in jax.live_arrays())
    live = sum(shard.data.nbytes for each in shards for shard in each)
    return hardware.peak_memory(jax.devices())["devices"] or live
