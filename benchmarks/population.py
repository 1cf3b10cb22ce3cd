"""What a round costs as the population grows: a hundred clients to a million.

    python -m benchmarks.population [--out result.json]
    python -m benchmarks.population --only stateless --most 10000

FedAvg of a small MLP on random images, 20 clients a round with a batch of 16 each, in
segments of 20 rounds as a run has them: cohorts drawn, rows fetched and written back.
Clients keep nothing, or their momentum, which is as large as the network: on the host,
or on the disk, where only those of clients that took part stand. All clients' images
are rows of one small array. Every case runs in a process of its own, whose peak of
resident memory stands beside what it was before the clients were made; of the disk's,
it counts mapped pages, which the system takes back when it needs them.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks import throughput  # makes the cores devices, so it comes first

import jax  # isort: skip
import numpy as np

import sparsefl_jax as sfl
from sparsefl_jax import begin, checks, data, disk_store, sampling, simulate, store

COHORT, ROUNDS, BATCH = 20, 20, 16
SHAPE, IMAGES = (28, 28, 1), 4096


class Case(NamedTuple):
    """A population; `width` of the hidden layer decides how much a client keeps."""

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
HEAD = {
    "clients": "clients",
    "row": "kept by each",
    "where": "where",
    "milliseconds": "a round, ms: best",
    "milliseconds_median": "median",
    "start_seconds": "start, s",
    "compile_seconds": "compile, s",
    "base": "resident before",
    "peak": "peak",
    "device": "arrays on devices",
    "files": "files",
}


def population(num_clients: int):
    """Clients of 16 images each, drawn from a few that all share."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (IMAGES, *SHAPE), dtype=np.uint8)
    y = rng.integers(0, 10, IMAGES)
    few = sfl.from_arrays(
        x, y, x_test=x[:10], y_test=y[:10], num_clients=2, test_split="pooled"
    )
    index = rng.integers(0, IMAGES, (num_clients, BATCH), dtype=np.int32)
    size = np.full(num_clients, BATCH, np.int32)
    return few._replace(train=data.federated.Rows(index, size))


def measure(case: Case, repeats: int) -> dict:
    """Times segments; the first one is the compilation. Bytes are of this process."""
    model = sfl.build_model("mlp", 10, SHAPE, widths=(case.width,))
    optimizer = sfl.make_optimizer("sgd", learning_rate=0.01, momentum=0.9)
    keeps = case.kind != "stateless"
    method = sfl.fedavg(sfl.cross_entropy(model), optimizer, keep_optimizer=keeps)
    stage = sfl.Stage(method, (repeats + 1) * ROUNDS, COHORT, 1, BATCH)
    plan = simulate.make_plan(stage, jax.tree.map(lambda m: m > 0, model.macs))
    key = jax.random.key(0)
    sparse = jax.block_until_ready(checks.initial_model(key, model))
    base = resident("VmRSS")
    clients = simulate.make_population(plan, population(case.clients))
    rows = begin.shapes(method, sparse, clients.info).clients
    working = None
    if case.where != "device":
        size = case.clients, COHORT, ROUNDS, plan.mesh.size
        working = store.working_size(*size)
    start = time.perf_counter()
    state = begin.start(key, plan, sparse, clients, None, working, case.where)
    jax.block_until_ready((state.server, state.last_round))
    told = {"start_seconds": time.perf_counter() - start, "base": base}
    segment = simulate.make_segment(plan)
    segment = (
        store.on_device(segment)
        if working is None
        else store.on_host(segment, plan.mesh, working)
    )
    state, seconds = timed(segment, key, clients, state, stage, case.clients, repeats)
    best, typical = min(seconds[1:]), statistics.median(seconds[1:])
    on_disk = isinstance(state.clients, disk_store.Rows)
    return (
        case._asdict()
        | told
        | {
            "row": store.num_bytes(rows) // case.clients,
            "milliseconds": 1e3 * best / ROUNDS,
            "milliseconds_median": 1e3 * typical / ROUNDS,
            "compile_seconds": seconds[0] - typical,
            "peak": resident("VmHWM"),
            "device": on_devices(),
            "files": state.clients.num_bytes if on_disk else 0,
        }
    )


def timed(segment, key, clients, state, stage, num_clients: int, repeats: int):
    """The last state, and seconds of each segment, as `loop` runs them."""
    draw = jax.jit(lambda rounds: sampling.cohorts(key, stage, num_clients, rounds))
    rounds, seconds, ahead = np.arange(ROUNDS, dtype=np.int32), [], None
    ids = np.asarray(draw(rounds))
    for _ in range(repeats + 1):
        start = time.perf_counter()
        following = np.asarray(draw(rounds + np.int32(ROUNDS)))
        state, log, ahead = segment(key, clients, state, rounds, ids, following, ahead)
        jax.block_until_ready((state.server, log))
        seconds.append(time.perf_counter() - start)
        rounds, ids = rounds + np.int32(ROUNDS), following
    return state, seconds


def resident(what: str) -> int:
    """Bytes of this process, as Linux has them under that name."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what):
            return 1024 * int(line.split()[1])
    raise SystemExit(f"/proc/self/status has no {what}: this benchmark needs Linux")


def on_devices() -> int:
    """Bytes of the arrays that there are, on all devices; a peak where one is known."""
    stats = [device.memory_stats() or {} for device in jax.devices()]
    if all("peak_bytes_in_use" in each for each in stats):
        return sum(each["peak_bytes_in_use"] for each in stats)
    return sum(
        shard.data.nbytes for v in jax.live_arrays() for shard in v.addressable_shards
    )


def line(told: dict) -> str:
    """A row of the table."""
    cells = []
    for name in HEAD:
        value = told[name]
        if name == "row":
            cells.append(f"{value / 2**10:,.0f} KiB")
        elif name in ("base", "peak", "device", "files"):
            cells.append(f"{value / 2**20:,.0f} MiB")
        elif name == "clients":
            cells.append(f"{value:,}")
        else:
            cells.append(value if name == "where" else f"{value:.2f}")
    return f"| {' | '.join(cells)} |"


def main():
    """Prints Markdown, a row for each population, and writes JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = ("stateless", "host", "disk")
    parser.add_argument("--only", nargs="*", choices=kinds, default=kinds)
    parser.add_argument("--most", type=int, default=10**6, help="clients")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case is not None:
        print(json.dumps(measure(CASES[args.case], args.repeats)))
        return
    about, results = throughput.machine(), []
    print(
        f"`--repeats {args.repeats}`; {about['cpu']} ({about['devices']}), jax"
        f" {about['jax']}, Python {about['python']}, commit {about['commit']},"
        f" {about['date']}:\n\n| {' | '.join(HEAD.values())} |\n{'|---' * len(HEAD)}|"
    )
    for number, case in enumerate(CASES):
        if case.kind not in args.only or case.clients > args.most:
            continue
        command = [sys.executable, "-m", "benchmarks.population"]
        command += ["--case", str(number), "--repeats", str(args.repeats)]
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        results.append(json.loads(said.stdout.splitlines()[-1]))
        print(line(results[-1]), flush=True)
        if args.out:
            told = {"machine": about, "results": results}
            args.out.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
