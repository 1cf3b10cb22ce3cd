"""Measures what removing pruned filters saves, compared with multiplying zeros.

    python -m benchmarks compaction                     # 35 % of all filters kept
    python -m benchmarks compaction --only conv4 --density 0.2

It compares two forms of a pruned network, masked and compacted, on random images in the
real engine: inference as in evaluation, and training with a fixed mask, one client per
core. Both forms are timed in turns in one process; a ratio is the median over the
turns. Weights are random, because they do not affect time.
"""

import functools
from collections.abc import Iterator

import jax
import numpy as np

import sparsefl_jax as sfl
from benchmarks import measure, workload
from sparsefl_jax.simulation import evaluate
from sparsefl_jax.sparsity import masks, trees
from sparsefl_jax.wire import ledger

NETWORKS = ("mlp", "lenet5_caffe", "mnistnet", "ic", "conv4", "resnet18")
CHOICES = {"only": NETWORKS}


def run(
    only=("lenet5_caffe", "conv4"), density=0.35, samples=1000, repeats=7
) -> Iterator[dict]:
    """Yields a row for each network; `samples` is the number of test images."""
    for name in only:
        yield compared(name, density, samples, repeats)


def compared(name: str, density: float, samples: int, repeats: int) -> dict:
    """Times a network with a share of its filters, masked and compacted."""
    setup, network = workload.SETUPS[name], workload.NETWORKS[name]
    args = name, network.classes, network.shape
    model = sfl.models.build(*args)
    active = uniform(model, density)
    sparse = pruned(model, active)
    smaller, small = sfl.compact(sparse, *args)
    data = workload.make_data(setup)
    data = data._replace(x_test=data.x[:samples], y_test=data.y[:samples])
    read = sfl.data.make_preprocess(data.mean, data.std)
    pair = [(model.reading(read), sparse), (smaller.reading(read), small)]
    check(pair, data.x[:32])
    training = setup._replace(method=sfl.spdst, momentum=0.9)
    passes, rounds = {}, {}
    for form, (model, sparse) in zip(("masked", "compacted"), pair, strict=True):
        evaluator = evaluate.make_evaluator(model, data.x_test, data.y_test)
        passes[form] = functools.partial(evaluator, sparse)
        one = workload.prepare(training, model=model, data=data)
        rounds[form] = workload.going(one, sparse)
    sizes = [sum(v.size for v in jax.tree.leaves(m.params)) for _, m in pair]
    macs = [ledger.macs_per_sample(m.macs) for m, _ in pair]
    kept = (f"{100 * v.mean():.0f}" for v in active.values())
    return (
        {"network": name, "kept by layer, %": ", ".join(kept)}
        | {"parameters": " -> ".join(f"{count:,}" for count in sizes)}
        | {"multiply-adds": " -> ".join(f"{count:,}" for count in macs)}
        | rates("inference, images/s", passes, len(data.y_test), repeats)
        | rates("training, steps/s", rounds, one.steps, repeats)
    )


def rates(what: str, calls: dict, items: int, repeats: int) -> dict:
    """Returns the median rate of both forms, and the median ratio over the turns."""
    seconds = measure.in_turns(calls, repeats)
    found = {
        f"{what}: {form}": items / float(np.median(each))
        for form, each in seconds.items()
    }
    ratio = np.median(seconds["masked"] / seconds["compacted"])
    return found | {f"{what.partition(',')[0]}, ratio": float(ratio)}


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
