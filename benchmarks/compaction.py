"""Measures what removing pruned filters saves, compared with multiplying zeros.

    python -m benchmarks.compaction                     # 35 % of all filters kept
    python -m benchmarks.compaction --only conv4 --density 0.2
    python -m benchmarks.compaction --run runs/spafl    # the filters that a run kept

It compares two forms of a pruned network, masked and compacted, on random images in the
real engine: inference as in evaluation, and training with a fixed mask, one client per
core. Both forms are timed in turns in one process; a ratio is the median over the
turns. Weights are random, because they do not affect time. A run provides the filters
of the client with the median number of filters, at the last round that was kept.
"""

import functools
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

import sparsefl_jax as sfl
from benchmarks import measure, workload
from benchmarks.throughput import SETUPS
from sparsefl_jax.report import filters
from sparsefl_jax.runs import run_directory
from sparsefl_jax.simulation import evaluate
from sparsefl_jax.sparsity import masks, trees
from sparsefl_jax.wire import ledger

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


def pruned(model: sfl.Model, active: dict[str, np.ndarray]) -> sfl.SparseModel:
    """Draws random weights, biases and statistics for the active filters.

    Args:
      model: the network.
      active: bool [filters] by the path of a kernel; other layers are dense.
    """
    rng = np.random.default_rng(0)
    params, stats = jax.device_get(model.init(jax.random.key(0)))
    # As after training, normalisation turns dead filters into constants other than 0.
    params, stats = jax.tree.map(
        lambda v: (
            v + 0.1 * np.abs(rng.normal(size=v.shape)).astype(np.float32)
            if v.ndim == 1
            else v
        ),
        (params, stats),
    )
    paths, leaves = trees.leaf_paths(params), jax.tree.leaves(params)
    kept = [
        np.broadcast_to(active.get(path, True), np.shape(leaf))
        for path, leaf in zip(paths, leaves, strict=True)
    ]
    mask = jax.tree.unflatten(jax.tree.structure(params), kept)
    return sfl.SparseModel(masks.apply(params, mask), mask, stats)


def uniform(model: sfl.Model, density: float) -> dict[str, np.ndarray]:
    """Draws random active filters for every layer; all classes stay."""
    rng, active = np.random.default_rng(0), {}
    shapes, _ = jax.eval_shape(model.init, jax.random.key(0))
    layers = jax.tree.map(lambda m: m > 0, model.macs)
    paths, kernels = trees.layer_paths(layers), trees.layers(shapes, layers)
    classes = max(path for path in paths if path.startswith("fc"))
    for path, kernel in zip(paths, kernels, strict=True):
        width = kernel.shape[-1]
        keep = width if path == classes else max(1, round(density * width))
        active[path] = rng.permutation(width) < keep
    return active


def of_run(run: Path) -> tuple[str, dict, dict[str, np.ndarray]]:
    """Returns a run's model, its arguments, and a typical client's filters."""
    config, kept = run_directory.read_config(run), filters.read_filters(run)
    if kept is None or not kept.snapshots:
        raise SystemExit(f"run={str(run)!r}, expected one with masks/filters_*.npy")
    active = kept.active(kept.filters[-1])
    count = np.concatenate(list(active.values()), 1).sum(1)
    client = np.argsort(count, kind="stable")[len(count) // 2]
    kwargs = config.model.to_dict()
    name = kwargs.pop("name")
    if name not in NETWORKS:
        known = ", ".join(NETWORKS)
        raise SystemExit(f"model={name!r} of the run, expected one of: {known}")
    return name, kwargs, {path: v[client] for path, v in active.items()}


def inference(model, sparse, x, y) -> Callable:
    """Returns a pass over the images, as evaluation does it."""
    evaluator = evaluate.make_evaluator(model, x, y)
    return lambda: evaluator(sparse)


def training(model, sparse, setup, data) -> tuple[Callable, int]:
    """Returns a round with a fixed mask, and its number of steps."""
    setup = setup._replace(method=sfl.spdst, momentum=0.9)
    one = workload.prepare(setup, model=model, data=data)
    return workload.going(one, sparse), one.steps


def compare_rates(calls, items: int, repeats: int) -> dict:
    """Returns the rates of both networks, and the median ratio over the turns.

    Args:
      calls: the calls of the masked and of the compacted network.
      items: the images or steps that one call processes.
      repeats: the number of turns.
    """
    names = "masked", "compacted"
    seconds = measure.in_turns(dict(zip(names, calls, strict=True)), repeats)
    timed = {name: measure.summary(seconds[name]) for name in names}
    rates = {f"{name}_rate": items / timed[name]["median_seconds"] for name in names}
    ratio = float(np.median(seconds["masked"] / seconds["compacted"]))
    return timed | rates | {"ratio": ratio}


def compared(name: str, kwargs: dict, active, samples: int, repeats: int) -> dict:
    """Measures all figures of a network.

    Args:
      name, kwargs: the network, of `NETWORKS`, and its arguments.
      active: bool [filters] by path, or the share to keep.
      samples: the number of test images.
      repeats: the number of turns.
    """
    setup, network = SETUPS[name], workload.NETWORKS[name]
    args = (name, network.classes, network.shape)
    model = sfl.models.build(*args, **kwargs)
    if not isinstance(active, dict):
        active = uniform(model, active)
    sparse = pruned(model, active)
    smaller, small = sfl.compact(sparse, *args, **kwargs)
    data = workload.make_data(setup)
    data = data._replace(x_test=data.x[:samples], y_test=data.y[:samples])
    read = sfl.data.make_preprocess(data.mean, data.std)
    pair = [(model.reading(read), sparse), (smaller.reading(read), small)]
    check(pair, data.x[:32])
    passes = [inference(*one, data.x_test, data.y_test) for one in pair]
    rounds, steps = zip(*(training(*one, setup, data) for one in pair), strict=True)
    return {
        "network": name,
        "kept": [100 * float(v.mean()) for v in active.values()],
        "parameters": [count_entries(m.params) for m in (sparse, small)],
        "macs": [ledger.macs_per_sample(m.macs) for m in (model, smaller)],
        "inference": compare_rates(passes, len(data.y_test), repeats),
        "training": compare_rates(rounds, steps[0], repeats),
    }


def row(r: dict) -> list[str]:
    inferred, trained = r["inference"], r["training"]
    return [
        r["network"],
        ", ".join(f"{kept:.0f}" for kept in r["kept"]),
        " -> ".join(f"{count:,}" for count in r["parameters"]),
        " -> ".join(f"{count:,}" for count in r["macs"]),
        *(f"{inferred[key]:.0f}" for key in ("masked_rate", "compacted_rate")),
        f"{inferred['ratio']:.2f}",
        *(f"{trained[key]:.1f}" for key in ("masked_rate", "compacted_rate")),
        f"{trained['ratio']:.2f}",
    ]


def check(pair, x) -> None:
    """Ends the program if the outputs of the two networks differ."""
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


def draw(results: list[dict], figure) -> None:
    """Plots bars of how many times as fast the compacted network is."""
    ax, places = figure.subplots(), np.arange(len(results))
    for shift, task in ((-0.2, "inference"), (0.2, "training")):
        ratios = [r[task]["ratio"] for r in results]
        bars = ax.bar(places + shift, ratios, 0.4, label=task)
        ax.bar_label(bars, fmt="%.2f")
    ax.set_xticks(places, [r["network"] for r in results])
    ax.set(ylabel="times as fast as masked", title="Pruned filters taken out")
    ax.legend()


def main():
    """Prints Markdown; writes JSON, Markdown and a plot."""
    parser = measure.parser(__doc__, repeats=7)
    parser.add_argument("--only", nargs="*", choices=NETWORKS)
    parser.add_argument("--density", type=float, default=0.35, help="filters kept")
    parser.add_argument(
        "--run", type=Path, help="folder of a run whose filters to take"
    )
    parser.add_argument("--samples", type=int, default=1000, help="test images")
    args = parser.parse_args()
    if not 0 < args.density <= 1:
        parser.error(f"density={args.density}, expected in (0, 1]")
    cases = [
        (name, {}, args.density) for name in args.only or ("lenet5_caffe", "conv4")
    ]
    if args.run:
        cases = [of_run(args.run)]
    about = measure.machine(repeats=args.repeats)
    results = [compared(*case, args.samples, args.repeats) for case in cases]
    table = measure.markdown(HEAD, map(row, results))
    draws = functools.partial(draw, results)
    measure.publish("compaction", args.out, about, results, table, draws)


if __name__ == "__main__":
    main()
