"""Measures the cost of a round as the population grows from a hundred to a million.

    python -m benchmarks population                  # 2 minutes
    python -m benchmarks population --only stateless --most 10000

FedAvg trains a small MLP on random images, with 20 clients a round and a batch of 16
each, in segments of 20 rounds: a run, which draws cohorts, reads and writes rows and
records. Clients keep nothing, or their momentum, which is as large as the network: on
the host, or on disk, which holds only the clients that took part. All clients' images
are rows of one small array. Every case runs in a process of its own. The table has its
peak of resident memory. With rows on disk, it counts mapped pages, which the system
reclaims on demand. The first segment has start and compilation.
"""

import time
from collections.abc import Iterator
from functools import partial

import jax
import numpy as np

import sparsefl_jax as sfl
from benchmarks import measure, workload
from sparsefl_jax.data import federated
from sparsefl_jax.simulation.rows import Store
from sparsefl_jax.system import hardware

ROUNDS, IMAGES, KEEPING = 20, 4096, partial(sfl.fedavg, keep_optimizer=True)
SETUP = workload.Workload("mlp", 100, 16, 20, KEEPING, 0.9, (20,), 16)
CASES = {  # numbers of clients; the hidden layer decides how much a client keeps
    "stateless": (SETUP._replace(method=sfl.fedavg), [10**n for n in range(2, 7)]),
    "host": (SETUP, [10**n for n in range(2, 6)]),
    "disk": (SETUP, [10**n for n in range(4, 7)]),
    "disk-large": (SETUP._replace(widths=(320,)), [10**n for n in range(5, 7)]),
}
CHOICES = {"only": CASES}


def run(only=tuple(CASES), most=10**6, repeats=7) -> Iterator[dict]:
    """Yields a row for each case with at most `most` clients."""
    for case in only:
        for clients in CASES[case][1]:
            if clients <= most:
                yield measure.apart(one, case, clients, repeats)


def one(case: str, clients: int, repeats: int) -> dict:
    """Times segments of a run in this process, and measures its memory."""
    setup, where = CASES[case][0], case.partition("-")[0]
    data = population(setup, clients)
    model = workload.make_model(setup, data)
    stage = workload.make_stage(setup, model, (repeats + 1) * ROUNDS)
    store = "device" if where == "stateless" else where
    settings = {"eval_every": ROUNDS, "client_store": store, "metric": "pooled"}
    seconds, begun = [], time.perf_counter()
    for segment in sfl.segments(jax.random.key(0), [stage], model, data, **settings):
        seconds.append(time.perf_counter() - begun)
        state, held = segment.snapshot.state.clients, on_devices()
        begun = time.perf_counter()
    stored = isinstance(state, Store)
    rows = jax.tree.leaves(state.take(np.arange(1)) if stored else state)
    each = sum(v.nbytes // len(v) for v in rows)
    memory = {
        "peak": hardware.peak_memory(jax.devices())["process"],
        "arrays on devices": held,
        "files": len(state.ids) * each if where == "disk" else 0,
    }
    return (
        {"clients": clients, "kept by each, KiB": each / 2**10, "where": where}
        | measure.times("ms a round", 1e3 / ROUNDS, np.array(seconds[1:]))
        | {"first segment, s": seconds[0]}
        | {f"{what}, MiB": size / 2**20 for what, size in memory.items()}
    )


def population(setup: workload.Workload, clients: int):
    """Returns clients whose images are drawn from some that all clients share."""
    rng, pair = np.random.default_rng(0), setup._replace(clients=2, samples=IMAGES // 2)
    index = rng.integers(0, IMAGES, (clients, setup.samples), dtype=np.int32)
    size = np.full(clients, setup.samples, np.int32)
    return workload.make_data(pair)._replace(train=federated.Rows(index, size))


def on_devices() -> int:
    """Returns the bytes of live arrays on all devices, or the peak if it is known."""
    shards = (v.addressable_shards for v in jax.live_arrays())
    live = sum(shard.data.nbytes for each in shards for shard in each)
    return hardware.peak_memory(jax.devices())["devices"] or live
