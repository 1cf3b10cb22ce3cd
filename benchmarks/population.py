"""Measures the cost of a round as the population grows from a hundred to a million.

    python -m benchmarks.population                  # 2 minutes
    python -m benchmarks.population --only stateless --most 10000

FedAvg trains a small MLP on random images, with 20 clients a round and a batch of 16
each, in segments of 20 rounds as in a run, which includes drawing cohorts and reading
and writing rows. Clients keep nothing, or their momentum, which is as large as the
network: on the host, or on disk, which holds only the clients that took part. All
clients' images are rows of one small array. Every case runs in a process of its own.
The table has its peak of resident memory, and the memory before the clients were made.
With rows on disk, the peak counts mapped pages, which the system reclaims on demand.
"""

import json
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

import sparsefl_jax as sfl
from benchmarks import measure
from sparsefl_jax import data
from sparsefl_jax.data import cohorts
from sparsefl_jax.report.figure import COLORS
from sparsefl_jax.simulation import (
    disk_store,
    initial_state,
    placement,
    round_program,
    store,
)

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
HEAD = (
    *("clients", "kept by each, KiB", "where", "ms a round: best", "median"),
    *("start, s", "compile s", "resident before, MiB", "peak", "arrays on devices"),
    "files",
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
    return two_clients._replace(train=data.federated.Rows(index, size))


def run(case: Case, repeats: int) -> dict:
    """Times segments, the first with compilation, and measures this process's bytes."""
    model = sfl.models.build("mlp", 10, SHAPE, widths=(case.width,))
    optimizer = sfl.training.make_optimizer("sgd", learning_rate=0.01, momentum=0.9)
    stateful = case.kind != "stateless"
    method = sfl.fedavg(model, optimizer, keep_optimizer=stateful)
    stage = sfl.Stage(method, (repeats + 1) * ROUNDS, COHORT, 1, BATCH)
    plan = placement.make_plan(stage, jax.tree.map(lambda m: m > 0, model.macs))
    key = jax.random.key(0)
    sparse = jax.block_until_ready(initial_state.initial_model(key, model))
    base = resident("VmRSS")
    clients = placement.make_population(plan, population(case.clients))
    rows = initial_state.shapes(method, sparse, clients.info).clients
    working = None
    if case.where != "device":
        size = case.clients, COHORT, ROUNDS, plan.mesh.size
        working = store.working_size(*size)
    start = time.perf_counter()
    state = initial_state.start(
        key, plan, sparse, clients.info, None, working, case.where
    )
    jax.block_until_ready((state.server, state.last_round))
    start_seconds = time.perf_counter() - start
    segment = jax.jit(round_program.make_segment(plan), donate_argnums=2)
    segment = (
        store.on_device(segment)
        if working is None
        else store.on_host(segment, plan.mesh, working)
    )
    state, seconds = timed(segment, key, clients, state, stage, case.clients, repeats)
    per_round = measure.summary(np.array(seconds[1:]) / ROUNDS)
    on_disk = isinstance(state.clients, disk_store.Rows)
    return (
        case._asdict()
        | per_round
        | {
            "start_seconds": start_seconds,
            "base": base,
            "row": store.num_bytes(rows) // case.clients,
            "compile_seconds": seconds[0] - ROUNDS * per_round["median_seconds"],
            "peak": resident("VmHWM"),
            "device": on_devices(),
            "files": state.clients.num_bytes if on_disk else 0,
        }
    )


def timed(segment, key, clients, state, stage, num_clients: int, repeats: int):
    """Returns the last state and the seconds of each segment, as `loop` runs them."""
    draw = jax.jit(lambda rounds: cohorts.cohorts(key, stage, num_clients, rounds))
    rounds, seconds, ahead = np.arange(ROUNDS, dtype=np.int32), [], None
    ids = np.asarray(draw(rounds))
    for _ in range(repeats + 1):
        start = time.perf_counter()
        following = np.asarray(draw(rounds + np.int32(ROUNDS)))
        state, log, ahead = segment(
            key, clients, state, rounds, ids, ROUNDS, following, ahead
        )
        jax.block_until_ready((state.server, log))
        seconds.append(time.perf_counter() - start)
        rounds, ids = rounds + np.int32(ROUNDS), following
    return state, seconds


def resident(field: str) -> int:
    """Returns the bytes of this process in a field of Linux's process status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise SystemExit(f"/proc/self/status has no {field}: this benchmark needs Linux")


def on_devices() -> int:
    """Returns the bytes of live arrays on all devices, or the peak if it is known."""
    stats = [device.memory_stats() or {} for device in jax.devices()]
    if all("peak_bytes_in_use" in of_device for of_device in stats):
        return sum(of_device["peak_bytes_in_use"] for of_device in stats)
    return sum(
        shard.data.nbytes for v in jax.live_arrays() for shard in v.addressable_shards
    )


def row(r: dict) -> list[str]:
    return [
        f"{r['clients']:,}",
        f"{r['row'] / 2**10:,.0f}",
        r["where"] if r["row"] else "-",
        f"{1e3 * r['minimum_seconds']:.2f}",
        f"{1e3 * r['median_seconds']:.2f}",
        f"{r['start_seconds']:.2f}",
        f"{r['compile_seconds']:.2f}",
        *(f"{r[key] / 2**20:,.0f}" for key in ("base", "peak", "device", "files")),
    ]


def draw(results: list[dict], figure) -> None:
    """Plots the time of a round, and memory, by population."""
    times, memory = figure.subplots(1, 2)
    kinds = dict.fromkeys((r["kind"], r["width"]) for r in results)
    for color, (kind, width) in zip(COLORS, kinds, strict=False):
        cases = [r for r in results if (r["kind"], r["width"]) == (kind, width)]
        row_size = f", {cases[0]['row'] / 2**10:,.0f} KiB" if cases[0]["row"] else ""
        style = {"color": color, "label": f"{kind}{row_size}"}
        counts = [r["clients"] for r in cases]
        times.plot(counts, [1e3 * r["minimum_seconds"] for r in cases], "o-", **style)
        memory.plot(counts, [r["peak"] / 2**20 for r in cases], "o-", **style)
    times.set(xscale="log", title="A round [ms]")
    memory.set(xscale="log", yscale="log", title="Peak of the process [MiB]")
    for ax in (times, memory):
        ax.set_xlabel("clients")
    times.set_ylim(bottom=0)
    times.legend()


def main():
    """Prints Markdown; writes JSON, Markdown and a plot."""
    parser = measure.parser(__doc__, repeats=7)
    kinds = ("stateless", "host", "disk")
    parser.add_argument("--only", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--most", type=int, default=10**6, help="clients")
    parser.add_argument("--inner", type=json.loads, help="used by itself")
    args = parser.parse_args()
    if args.inner:
        case, repeats = args.inner
        return measure.tell(run(Case(*case), repeats))
    chosen = [c for c in CASES if c.kind in args.only and c.clients <= args.most]
    if not chosen:
        parser.error(f"most={args.most}, expected at least 100")
    results = []
    for case in chosen:
        output = measure.apart("population", (case, args.repeats))
        results.append(output["result"])
        print(*row(results[-1]), sep="  ", flush=True)
    about = {"repeats": args.repeats} | output["machine"]
    table = measure.markdown(HEAD, map(row, results))
    draws = partial(draw, results)
    measure.publish("population", args.out, about, results, table, draws, (10, 4))


if __name__ == "__main__":
    main()
