"""Client steps per second through the real engine, beside the measured matmul rate.

    python benchmarks/throughput.py                     # all set-ups
    python benchmarks/throughput.py --only mlp resnet18 --out result.json
    python benchmarks/throughput.py --compare lenet5_fedavg lenet5_spafl

FedAvg with plain SGD on random images, where a set-up names no other method; a step is
one client's minibatch: forward, both gradients, update. GFLOP/s are six times the
network's multiply-adds per sample, so normalisation, pooling and the federated work
count as lost time. The rate beside it is a square float32 matmul on every device at
once, timed before and after each set-up. `--compare` takes rounds of two set-ups in
turns, so that a noisy machine is as noisy for both.
"""

import argparse
import datetime
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from sparsefl_jax import devices

devices.use_cpu_cores()

import jax  # noqa: E402
import numpy as np  # noqa: E402

import sparsefl_jax as sfl  # noqa: E402
from sparsefl_jax import begin, checks, costs, sampling, simulate, timings  # noqa: E402


class Setup(NamedTuple):
    """A network and how it is trained; `cohort` 0 means four clients a device."""

    model: str
    shape: tuple[int, int, int]
    batch_size: int
    clients: int
    samples: int
    cohort: int = 0
    method: Callable = sfl.fedavg
    momentum: float = 0.0


SETUPS = {
    "mlp": Setup("mlp", (28, 28, 1), 32, 100, 600),
    "lenet5_caffe": Setup("lenet5_caffe", (28, 28, 1), 64, 100, 640),
    "mnistnet": Setup("mnistnet", (28, 28, 1), 32, 100, 600),
    "ic": Setup("ic", (28, 28, 1), 64, 100, 640),
    "conv4": Setup("conv4", (32, 32, 3), 16, 20, 160),
    "resnet18": Setup("resnet18", (32, 32, 3), 32, 20, 128),
    "lenet5_fedavg": Setup("lenet5_caffe", (28, 28, 1), 64, 100, 640, momentum=0.9),
    "lenet5_spafl": Setup(
        "lenet5_caffe", (28, 28, 1), 64, 100, 640, method=sfl.spafl, momentum=0.9
    ),
    "pfl": Setup("simple_cnn", (32, 32, 3), 10, 1000, 50, cohort=50),
}


def build(setup: Setup, chunk):
    """One round of FedAvg as a compiled segment, with its arguments."""
    rng = np.random.default_rng(0)
    count = setup.clients * setup.samples
    images = rng.integers(0, 256, (count, *setup.shape), dtype=np.uint8)
    labels = rng.integers(0, 10, count)
    data = sfl.from_arrays(
        images,
        labels,
        x_test=images[:10],
        y_test=labels[:10],
        num_classes=10,
        num_clients=setup.clients,
        test_split="pooled",
    )
    model = sfl.build_model(setup.model, 10, setup.shape)
    model = model.reading(sfl.make_preprocess(data.mean, data.std))
    optimizer = sfl.make_optimizer(
        "sgd", learning_rate=0.01, momentum=setup.momentum or None
    )
    method = setup.method(sfl.cross_entropy(model), optimizer)
    cohort = setup.cohort or 4 * jax.device_count()
    stage = sfl.Stage(method, 1, cohort, 1, setup.batch_size)
    layers = jax.tree.map(lambda m: m > 0, model.macs)
    plan = simulate.make_plan(stage, layers, chunk=chunk)
    population = simulate.make_population(plan, data)
    key = jax.random.key(0)
    state = begin.start(key, plan, checks.initial_model(key, model), population)
    rounds = np.zeros(1, np.int32)
    ids = sampling.cohorts(key, stage, setup.clients, rounds)
    steps = cohort * -(-setup.samples // setup.batch_size)
    segment = simulate.make_segment(plan)
    return segment, key, population, state, rounds, ids, steps, model


def measure(setup: Setup, repeats: int, chunk) -> dict:
    """Times single rounds; the first one is the compilation."""
    before = timings.matmul_rate() / 1e9
    segment, key, population, state, rounds, ids, steps, model = build(setup, chunk)
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        state, log = segment(key, population, state, rounds, ids)
        jax.block_until_ready((state, log))
        times.append(time.perf_counter() - start)
    after = timings.matmul_rate() / 1e9
    work = 6e-9 * costs.macs_per_sample(model.macs) * setup.batch_size
    rate, best, typical = (
        max(before, after),
        min(times[1:]),
        statistics.median(times[1:]),
    )
    return {
        "steps_per_second": steps / best,
        "steps_per_second_median": steps / typical,
        "gflops": steps / best * work,
        "matmul_gflops": rate,
        "fraction": steps / best * work / rate,
        "steps_per_second_per_gflops": steps / best / rate,
        "compile_seconds": times[0] - typical,
    }


def compare(names, repeats: int, chunk) -> None:
    """Rounds of two set-ups in turns; prints both rates and their median ratio."""
    built = [list(build(SETUPS[name], chunk)) for name in names]
    seconds = np.zeros((repeats + 1, 2))
    for turn in seconds:
        for i, (segment, key, population, _, rounds, ids, *_) in enumerate(built):
            start = time.perf_counter()
            built[i][3], log = segment(key, population, built[i][3], rounds, ids)
            jax.block_until_ready((built[i][3], log))
            turn[i] = time.perf_counter() - start
    rates = [each[6] / np.median(seconds[1:, i]) for i, each in enumerate(built)]
    ratio = np.median(seconds[1:, 0] / seconds[1:, 1])
    for name, rate in zip(names, rates, strict=True):
        print(f"{name:14} {rate:7.1f} client steps/s (median of {repeats})")
    print(f"{names[1]} runs at {ratio:.3f} of the rate of {names[0]}")


def machine() -> dict:
    """Where and with what the figures were taken."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    where = Path(__file__).parent
    commit = subprocess.run(command, capture_output=True, text=True, cwd=where).stdout
    cpu = [
        line.split(":")[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "cpu": f"{len(cpu)} x {cpu[0]}" if cpu else platform.processor(),
        "jax": jax.__version__,
        "python": platform.python_version(),
        "commit": commit.strip(),
        "date": datetime.date.today().isoformat(),
    }


def main():
    """Prints a table, and writes JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=SETUPS, default=list(SETUPS))
    parser.add_argument("--compare", nargs=2, choices=SETUPS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--chunk", default="auto")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    about, results = machine(), {}
    print(about)
    if args.compare:
        return compare(args.compare, args.repeats, args.chunk)
    print(f"{'set-up':14} steps/s  median  GFLOP/s  matmul  fraction  compile s")
    for name in args.only:
        r = results[name] = measure(SETUPS[name], args.repeats, args.chunk)
        print(
            f"{name:14} {r['steps_per_second']:7.1f}"
            f" {r['steps_per_second_median']:7.1f}"
            f" {r['gflops']:8.1f} {r['matmul_gflops']:7.1f} {r['fraction']:9.3f}"
            f" {r['compile_seconds']:10.1f}",
            flush=True,
        )
    if args.out:
        args.out.write_text(
            json.dumps({"machine": about, "results": results}, indent=1)
        )


if __name__ == "__main__":
    main()
