"""Measures the size, latency and throughput of sparse models.

    python -m benchmarks.inference                        # random weights, by sparsity
    python -m benchmarks.inference --only mlp --sparsity 0 0.9
    python -m benchmarks.inference --runs runs/a runs/b   # models of finished runs

The figures are those of Tables 1 and 2 of FedSparsify (Stripelis et al. 2022), with the
kernels available on this platform instead of DeepSparse, see `engines.py`. Engines are
timed in turns in one process. The first call, which compiles, has a column of its own;
the dense network is compiled once for all sparsities.
"""

import argparse
import datetime
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path

import jax
import numpy as np

import sparsefl_jax as sfl
from benchmarks.engines import DENSE, ENGINES, NETWORKS, Case, too_large
from sparsefl_jax import models
from sparsefl_jax.report.figure import COLORS, canvas
from sparsefl_jax.runs import run_directory
from sparsefl_jax.system import hardware as devices
from sparsefl_jax.system import provenance

SPARSITIES = (0.0, 0.8, 0.9, 0.95, 0.99)
SECONDS = 0.5  # the time of an engine for one figure, which is at least one call


def random_case(name: str, sparsity: float) -> Case:
    """Returns a network of random weights, of which `int(sparsity * n)` are pruned."""
    rng = np.random.default_rng(0)
    shape = NETWORKS[name].shape
    network = {"name": name, "num_classes": 10, "input_shape": shape}
    params, stats = jax.device_get(models.build(**network).init(jax.random.key(0)))
    leaves, treedef = jax.tree.flatten(params)
    n = sum(leaf.size for leaf in leaves)
    alive = np.split(
        rng.permutation(n) >= int(sparsity * n),
        np.cumsum([leaf.size for leaf in leaves])[:-1],
    )
    alive = [a.reshape(leaf.shape) for a, leaf in zip(alive, leaves, strict=True)]
    mask = jax.tree.unflatten(treedef, alive)
    # As after training, activations keep their scale, and biases and statistics matter.
    scale = np.float32((1 - sparsity) ** -0.5)
    params, stats = jax.tree.map(
        lambda v: (
            (v + 0.1 * np.abs(rng.normal(size=v.shape))).astype(np.float32)
            if v.ndim == 1
            else v * scale
        ),
        (params, stats),
    )
    params = jax.tree.map(lambda v, m: np.where(m, v, np.float32(0)), params, mask)
    return Case(name, network, sfl.SparseModel(params, mask, stats))


def case_of_run(run: Path) -> Case:
    """Returns the model that a run deploys at the target density."""
    config = run_directory.read_config(run)
    if config.model.name not in NETWORKS:
        known = ", ".join(NETWORKS)
        raise ValueError(f"model={config.model.name!r} of {run}, expected of: {known}")
    with tempfile.TemporaryDirectory() as folder:
        path, _ = sfl.export_run(run, Path(folder) / "model")
        exported = sfl.load_sparse(path)
    return Case(config.model.name, exported.about["network"], exported.sparse)


def in_turns(calls: dict[str, Callable], repeats: int) -> dict[str, dict]:
    """Returns the seconds per call of compiled engines, timed in turns.

    Args:
      calls: the calls to time, by engine.
      repeats: the number of turns; engines that would exceed `SECONDS` get fewer.
    """
    counts, turns, seconds = {}, {}, {name: [] for name in calls}
    for name, call in calls.items():
        once = _timed(call)
        counts[name] = max(1, round(0.01 / once))
        turns[name] = min(max(1, int(SECONDS / (once * counts[name]))), repeats)
    for turn in range(repeats):
        for name in calls if turn % 2 else reversed(calls):
            if turn < turns[name]:
                seconds[name].append(_timed(calls[name], counts[name]))
    return {
        name: {
            "median_seconds": statistics.median(seconds[name]),
            "minimum_seconds": min(seconds[name]),
            "turns": turns[name],
            "times_dense": statistics.median(
                a / b for a, b in zip(seconds[DENSE], seconds[name], strict=False)
            ),
        }
        for name in calls
    }


def _timed(call: Callable, count: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def speeds(case: Case, repeats: int) -> dict[str, dict]:
    """Times every engine: `latency` at batch 1, `throughput` at the network's batch.

    Raises:
      SystemExit: an engine's logits differ from the dense network's by more than 1e-5.
    """
    engines = {name: make(case) for name, make in ENGINES.items()}
    figures = {name: {} for name in engines}
    for metric, batch in (("latency", 1), ("throughput", NETWORKS[case.name].batch)):
        shape = (batch, *case.network["input_shape"])
        x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
        calls = {
            name: partial(engine, x)
            for name, engine in engines.items()
            if not too_large(name, case, batch)
        }
        first = {name: _timed(call) for name, call in calls.items()}
        for name, call in calls.items():
            check(name, call(), calls[DENSE]())
        for name, timed in in_turns(calls, repeats).items():
            facts = {"batch": batch, "first_call_seconds": first[name]}
            figures[name][metric] = timed | facts
    return figures


def check(name: str, logits: np.ndarray, dense: np.ndarray) -> None:
    """Ends the program if logits differ by more than 1e-5 of the largest."""
    difference = float(np.abs(logits - dense).max() / np.abs(dense).max())
    if not difference <= 1e-5:
        raise SystemExit(f"the logits of {name} differ by {difference:.1e}")


def sizes(case: Case) -> dict[str, int]:
    """Returns the bytes of the exported model by index, and of the dense model."""
    result = {}
    with tempfile.TemporaryDirectory() as folder:
        for index in ("bitmap", "csr"):
            size = sfl.save_sparse(
                Path(folder) / index, case.sparse, index=index, network=case.network
            )
            result[f"payload_{index}"] = size.payload
            result[f"file_{index}"] = size.payload + size.header
    return result | {"dense": size.dense}


def measure(case: Case, repeats: int) -> dict:
    """Measures all figures of a model."""
    leaves = jax.tree.leaves(case.sparse.mask)
    alive, total = sum(int(m.sum()) for m in leaves), sum(m.size for m in leaves)
    return {
        "network": case.name,
        "parameters": total,
        "alive": alive,
        "sparsity": 1 - alive / total,
        "bytes": sizes(case),
        "engines": speeds(case, repeats),
    }


def size_table(results: Sequence[dict]) -> str:
    """Formats the sizes of the models' files as Markdown."""
    head = (
        "network",
        "sparsity",
        "parameters alive",
        "dense, kB",
        "payload, kB: bitmap",
    )
    head += ("CSR", "file of the smaller, kB", "times smaller than dense")
    rows = []
    for r in results:
        b = r["bytes"]
        file = min(b["file_bitmap"], b["file_csr"])
        figures = (b["dense"], b["payload_bitmap"], b["payload_csr"], file)
        rows.append(
            (r["network"], f"{r['sparsity']:.2f}", f"{r['alive']:,}")
            + tuple(f"{v / 1e3:,.1f}" for v in figures)
            + (f"{b['dense'] / file:.2f}",)
        )
    return _markdown(head, rows)


def speed_table(results: Sequence[dict]) -> str:
    """Formats a Markdown row for each model and engine."""
    head = ("network", "sparsity", "engine", "latency, ms: median", "best", "times")
    head += ("first, s", "samples/s: median", "best", "times", "first, s")
    rows = []
    for r in results:
        for engine, figures in r["engines"].items():
            row = [r["network"], f"{r['sparsity']:.2f}", engine]
            for metric, text in (("latency", _milliseconds), ("throughput", _rate)):
                row += _cells(figures.get(metric), text)
            rows.append(row)
    return _markdown(head, rows)


def _cells(timed: dict | None, text: Callable) -> list[str]:
    """Formats the median, the best, the ratio to the dense network, the first call."""
    if timed is None:
        return ["-"] * 4
    times = (text(timed[key], timed) for key in ("median_seconds", "minimum_seconds"))
    ratio, first = timed["times_dense"], timed["first_call_seconds"]
    return [*times, f"{ratio:.2f}", f"{first:.2f}"]


def _milliseconds(seconds: float, timed: dict) -> str:
    del timed
    return f"{1e3 * seconds:.3f}"


def _rate(seconds: float, timed: dict) -> str:
    return f"{timed['batch'] / seconds:,.0f}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plot(results: Sequence[dict], path: Path) -> None:
    """Draws how many times as fast as the dense network each engine is."""
    networks = list(dict.fromkeys(r["network"] for r in results))
    with canvas(path, (9.0, 3.6 * len(networks))) as figure:
        grid = figure.subplots(len(networks), 2, squeeze=False)
        for row, network in zip(grid, networks, strict=True):
            for ax, metric in zip(row, ("latency", "throughput"), strict=True):
                for name, color in zip(ENGINES, COLORS, strict=False):
                    points = [
                        (r["sparsity"], r["engines"][name][metric]["times_dense"])
                        for r in results
                        if r["network"] == network and metric in r["engines"][name]
                    ]
                    ax.plot(*zip(*points, strict=True), "o-", color=color, label=name)
                ax.set(yscale="log", xlabel="sparsity", title=f"{metric}: {network}")
                ax.set_ylabel("times as fast as dense, XLA")
        grid[0][0].legend()


def about(repeats: int) -> dict:
    """Returns the hardware and the versions behind the figures."""
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return {
        "repeats": repeats,
        "processor": devices.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        **provenance.versions(),
        "scipy": metadata.version("scipy"),
        "blas": f"{blas['name']} {blas['version']}",
        "commit": provenance.commit(),
        "date": datetime.date.today().isoformat(),
    }


def main():
    """Prints Markdown; writes `inference.json` and `inference.png`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=NETWORKS)
    parser.add_argument("--sparsity", nargs="*", type=float, default=SPARSITIES)
    parser.add_argument("--runs", nargs="*", type=Path, help="folders of runs")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("runs/inference"))
    args = parser.parse_args()
    if not all(0 <= s < 1 for s in args.sparsity):
        parser.error(f"sparsity={args.sparsity}, expected each in [0, 1)")
    machine, results = about(args.repeats), []
    if args.runs:
        cases = map(case_of_run, args.runs)
    else:
        names = args.only or ("mlp", "fedsparsify_cnn")
        for name in set(names) - set(models.MODELS):
            print(f"{name}: left out, as there is no such model\n")
        names = [name for name in names if name in models.MODELS]
        cases = (random_case(name, s) for name in names for s in args.sparsity)
    for case in cases:
        results.append(measure(case, args.repeats))
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    print(f"\n{size_table(results)}\n\n{speed_table(results)}")
    args.out.mkdir(parents=True, exist_ok=True)
    content = {"machine": machine, "results": results}
    (args.out / "inference.json").write_text(json.dumps(content, indent=1))
    plot(results, args.out / "inference.png")


if __name__ == "__main__":
    main()
