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
from sparsefl_jax.sparsity import masks
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
    sparse, kept = pruned(model, density)
    smaller, small = sfl.compact(sparse, *args)
    data = workload.make_data(setup)
    x_test, y_test = data.x[:samples], data.y[:samples]
    read = sfl.data.make_preprocess(data.mean, data.std)
    forms = {"masked": (model, sparse), "compacted": (smaller, small)}
    training = setup._replace(method=sfl.spdst, momentum=0.9)
    passes, rounds = {}, {}
    for form, (model, sparse) in forms.items():
        model = model.reading(read)
        evaluator = evaluate.make_evaluator(model, x_test, y_test)
        passes[form] = functools.partial(evaluator, sparse)
        one = workload.prepare(training, model=model, data=data)
        rounds[form] = workload.going(one, sparse)
    sizes = [sum(v.size for v in jax.tree.leaves(m.params)) for _, m in forms.values()]
    macs = [ledger.macs_per_sample(m.macs) for m, _ in forms.values()]
    return (
        {"network": name, "kept by layer, %": kept}
        | {"parameters": " -> ".join(f"{count:,}" for count in sizes)}
        | {"multiply-adds": " -> ".join(f"{count:,}" for count in macs)}
        | rates("inference, images/s", passes, len(y_test), repeats)
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


def pruned(model: sfl.Model, density: float) -> tuple[sfl.SparseModel, str]:
    """Draws the filters that stay in each layer; all classes do.

    Returns:
      The network with random biases, and the shares by layer in percent.
    """
    rng, kept = np.random.default_rng(0), {}
    params, stats = jax.device_get(model.init(jax.random.key(0)))
    classes = max(name for name in params if name.startswith("fc"))

    def bias(leaf):  # as after training, by which dead filters are not 0 everywhere
        drawn = np.abs(rng.normal(size=leaf.shape)).astype(np.float32)
        return leaf + 0.1 * drawn * (leaf.ndim == 1)

    def filters(path, leaf):
        name, width = jax.tree_util.keystr(path), leaf.shape[-1]
        keep = width if leaf.ndim == 1 or classes in name else round(density * width)
        active = rng.permutation(width) < max(1, keep)
        if leaf.ndim > 1:
            kept[name] = f"{100 * active.mean():.0f}"
        return np.broadcast_to(active, leaf.shape)

    params, stats = jax.tree.map(bias, (params, stats))
    mask = jax.tree_util.tree_map_with_path(filters, params)
    sparse = sfl.SparseModel(masks.apply(params, mask), mask, stats)
    return sparse, ", ".join(kept.values())
