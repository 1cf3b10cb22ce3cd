"""What it saves to take pruned filters out, beside multiplying their zeros.

    python -m benchmarks.compaction                     # 35 % of all filters kept
    python -m benchmarks.compaction --only conv4 --density 0.2
    python -m benchmarks.compaction --run runs/spafl    # the filters that a run kept

The same pruned network twice, whole with its mask and compacted, on random images
through the real engine: inference as evaluation does it, and training that goes on with
the mask fixed, one client per core. Both are timed in turns in one process; a ratio is
the median over the turns. Weights are random, as they change no time; from a run come
the filters of the client with the median number of them, at its last kept round.
"""

import argparse
import functools
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks import throughput  # makes the cores devices, so it comes first

import jax  # isort: skip
import numpy as np

import sparsefl_jax as sfl
from sparsefl_jax import begin, costs, evaluate, sampling, simulate, workdir
from sparsefl_jax.report import filters
from sparsefl_jax.sparsity import masks

NETWORKS = ("mlp", "lenet5_caffe", "mnistnet", "ic", "conv4", "resnet18")
HEAD = (
    "network",
    "kept by layer, %",
    "parameters",
    "multiply-adds",
    "inference, images/s: masked",
    "compacted",
    "ratio",
    "training, steps/s: masked",
    "compacted",
    "ratio",
)


class Timed(NamedTuple):
    """Calls a second of both networks, medians, and how many times faster one is."""

    masked: float
    compacted: float
    ratio: float


def pruned(model: sfl.Model, active: dict[str, np.ndarray]) -> sfl.SparseModel:
    """Random weights, biases and statistics on the filters that are kept.

    Args:
      model: the network.
      active: bool [filters] by the path of a kernel; layers that it lacks are whole.
    """
    rng = np.random.default_rng(0)
    params, stats = jax.device_get(model.init(jax.random.key(0)))
    # As after training: normalisation makes other constants than 0 of dead filters.
    params, stats = jax.tree.map(
        lambda v: (
            v + 0.1 * np.abs(rng.normal(size=v.shape)).astype(np.float32)
            if v.ndim == 1
            else v
        ),
        (params, stats),
    )
    paths, leaves = masks.leaf_paths(params), jax.tree.leaves(params)
    kept = [
        np.broadcast_to(active.get(path, True), np.shape(leaf))
        for path, leaf in zip(paths, leaves, strict=True)
    ]
    mask = jax.tree.unflatten(jax.tree.structure(params), kept)
    return sfl.SparseModel(masks.apply(params, mask), mask, stats)


def uniform(model: sfl.Model, density: float) -> dict[str, np.ndarray]:
    """Random filters of every layer, all classes."""
    rng, active = np.random.default_rng(0), {}
    shapes, _ = jax.eval_shape(model.init, jax.random.key(0))
    layers = jax.tree.map(lambda m: m > 0, model.macs)
    paths, kernels = masks.layer_paths(layers), masks.layers(shapes, layers)
    classes = max(path for path in paths if path.startswith("fc"))
    for path, kernel in zip(paths, kernels, strict=True):
        width = kernel.shape[-1]
        keep = width if path == classes else max(1, round(density * width))
        active[path] = rng.permutation(width) < keep
    return active


def of_run(run: Path) -> tuple[str, dict, dict[str, np.ndarray]]:
    """A run's model, its arguments, and a typical client's filters."""
    config, kept = workdir.read_config(run), filters.read_filters(run)
    if kept is None or not kept.snapshots:
        raise SystemExit(f"run={str(run)!r}, expected one with masks/filters_*.npy")
    active = kept.active(kept.snapshots[-1])
    count = np.concatenate(list(active.values()), 1).sum(1)
    client = np.argsort(count, kind="stable")[len(count) // 2]
    kwargs = config.model.to_dict()
    name = kwargs.pop("name")
    if name not in NETWORKS:
        known = ", ".join(NETWORKS)
        raise SystemExit(f"model={name!r} of the run, expected one of: {known}")
    return name, kwargs, {path: v[client] for path, v in active.items()}


def inference(model, sparse, x, y) -> Callable:
    """One pass over the images, as evaluation does it."""
    evaluator = evaluate.make_evaluator(model, x, y)
    return lambda: evaluator(sparse)


def training(model, sparse, setup, data) -> tuple[Callable, int]:
    """One round with the mask fixed, and its steps."""
    optimizer = sfl.make_optimizer("sgd", learning_rate=0.001, momentum=0.9)
    method = sfl.spdst(sfl.cross_entropy(model), optimizer)
    cohort = setup.cohort or 4 * jax.device_count()
    stage = sfl.Stage(method, 1, cohort, 1, setup.batch_size)
    plan = simulate.make_plan(stage, jax.tree.map(lambda m: m > 0, model.macs))
    population = simulate.make_population(plan, data)
    key = jax.random.key(0)
    sparse = jax.tree.map(jax.numpy.asarray, sparse)
    held = [begin.start(key, plan, sparse, population)]
    rounds = np.zeros(1, np.int32)
    ids = sampling.cohorts(key, stage, setup.clients, rounds)
    segment = simulate.make_segment(plan)

    def one_round():
        held[0], log = segment(key, population, held[0], rounds, ids)
        jax.block_until_ready((held, log))

    return one_round, cohort * math.ceil(setup.samples / setup.batch_size)


def in_turns(masked: Callable, compacted: Callable, each: int, repeats: int) -> Timed:
    """Times both, one after the other and the other way round; the first is compiling.

    Args:
      masked, compacted: what to call.
      each: what one call works off.
      repeats: turns.
    """
    calls, times = (masked, compacted), np.zeros((repeats + 1, 2))
    for turn in range(repeats + 1):
        for which in (0, 1) if turn % 2 else (1, 0):
            start = time.perf_counter()
            calls[which]()
            times[turn, which] = time.perf_counter() - start
    slow, fast = times[1:].T
    ratio = statistics.median(slow / fast)
    return Timed(each / statistics.median(slow), each / statistics.median(fast), ratio)


def measure(name: str, kwargs: dict, active, samples: int, repeats: int) -> list[str]:
    """A row of the table.

    Args:
      name, kwargs: the network, of `NETWORKS`, and its arguments.
      active: bool [filters] by path; or the share to keep.
      samples: test images.
      repeats: turns.
    """
    setup = throughput.SETUPS[name]
    args = (setup.model, 10, setup.shape)
    model = sfl.build_model(*args, **kwargs)
    if not isinstance(active, dict):
        active = uniform(model, active)
    sparse = pruned(model, active)
    smaller, small = sfl.compact(sparse, *args, **kwargs)
    rng = np.random.default_rng(0)
    count = setup.clients * setup.samples
    x = rng.integers(0, 256, (count, *setup.shape), dtype=np.uint8)
    y = rng.integers(0, 10, count)
    data = sfl.from_arrays(
        x,
        y,
        x_test=x[:samples],
        y_test=y[:samples],
        num_classes=10,
        num_clients=setup.clients,
        test_split="pooled",
    )
    read = sfl.make_preprocess(data.mean, data.std)
    pair = [(model.reading(read), sparse), (smaller.reading(read), small)]
    check(pair, x[:32])
    passes = [inference(*one, data.x_test, data.y_test) for one in pair]
    inferred = in_turns(*passes, len(data.y_test), repeats)
    rounds, steps = zip(*(training(*one, setup, data) for one in pair), strict=True)
    trained = in_turns(*rounds, steps[0], repeats)
    return [
        name,
        ", ".join(f"{100 * v.mean():.0f}" for v in active.values()),
        " -> ".join(f"{count_entries(m.params):,}" for m in (sparse, small)),
        " -> ".join(f"{costs.macs_per_sample(m.macs):,}" for m in (model, smaller)),
        *(f"{v:.0f}" for v in inferred[:2]),
        f"{inferred.ratio:.2f}",
        *(f"{v:.1f}" for v in trained[:2]),
        f"{trained.ratio:.2f}",
    ]


def check(pair, x) -> None:
    """Ends the program where the two networks differ."""
    quick = {"xla_backend_optimization_level": 0}  # these run once
    logits = []
    for model, sparse in pair:
        apply = functools.partial(model.apply, train=False)
        apply = jax.jit(apply, compiler_options=quick)
        logits.append(apply(sparse.params, sparse.stats, x)[0])
    difference = float(np.abs(logits[0] - logits[1]).max())
    if not difference <= 1e-5 * max(1.0, float(np.abs(logits[0]).max())):
        raise SystemExit(f"the compacted network's logits differ by {difference}")


def count_entries(tree) -> int:
    return sum(v.size for v in jax.tree.leaves(tree))


def main():
    """Prints Markdown: a row for each network, and where it was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=NETWORKS)
    parser.add_argument("--density", type=float, default=0.35, help="filters kept")
    parser.add_argument(
        "--run", type=Path, help="folder of a run whose filters to take"
    )
    parser.add_argument("--samples", type=int, default=1000, help="test images")
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    if not 0 < args.density <= 1:
        parser.error(f"density={args.density}, expected in (0, 1]")
    rows = [(name, {}, args.density) for name in args.only or ("lenet5_caffe", "conv4")]
    if args.run:
        rows = [of_run(args.run)]
    about = throughput.machine()
    print(
        f"`--repeats {args.repeats}`; {about['cpu']} ({about['devices']}), jax"
        f" {about['jax']}, Python {about['python']}, commit {about['commit']},"
        f" {about['date']}:\n"
    )
    print(f"| {' | '.join(HEAD)} |\n{'|---' * len(HEAD)}|")
    for row in rows:
        cells = measure(*row, args.samples, args.repeats)
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
