"""Measures the bits of positions by code and density, on masks of a trained network.

    python -m benchmarks positions            # LeNet-5-Caffe, a minute
    python -m benchmarks positions --model small_cnn --densities 0.1 0.01

FedAvg trains a network on the images that the package has. One mask keeps the largest
weights of all kernels, as magnitude pruning does; another one keeps the largest entries
of a client's update, as top-k compression does. Bits are those that the ledger charges,
means over `--repeats` networks.
"""

from collections.abc import Iterator

import jax
import numpy as np

import sparsefl_jax as sfl
from benchmarks import measure as measure  # starts a device for every core
from sparsefl_jax.sparsity import masks, top_k, trees
from sparsefl_jax.wire import packets
from sparsefl_jax.wire.charges import message_bits
from sparsefl_jax.wire.positions import POSITIONS

CHOICES = {"model": ("lenet5_caffe", "mlp", "small_cnn")}


def run(
    model="lenet5_caffe",
    densities=(0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.001),
    rounds=20,
    repeats=3,
) -> Iterator[dict]:
    """Yields bits per position by mask, density and code, after rounds of training."""
    networks = [trained(model, seed, rounds) for seed in range(repeats)]
    for kind in networks[0]:
        for density in densities:
            of_each = [bits(one[kind], density) for one in networks]
            means = {
                index: float(np.mean([each[index] for each in of_each]))
                for index in POSITIONS
            }
            ratio = {"golomb / packed": means["golomb"] / means["packed"]}
            yield {"mask of": kind, "density": density} | means | ratio


def bits(tree, density: float) -> dict[str, float]:
    """Returns the charged bits per position of a tree's largest entries, by code."""
    select = masks.everything(tree)
    count = round(density * int(trees.layer_sizes(tree, select).sum()))
    size = jax.tree.map(np.abs, tree)
    mask = jax.device_get(top_k.largest_overall(size, count, select))
    found = {}
    for index in POSITIONS:
        message = {"mask": packets.Packet(mask, mask, bits=0, index=index)}
        charged = message_bits(packets.layout(message), packets.count(message))
        found[index] = int(charged.total) / count
    return found


def trained(name: str, seed: int, rounds: int) -> dict:
    """Returns the weights after some rounds, and one client's update in the next."""
    dataset = "fashion_mnist_sample" if name != "small_cnn" else "cifar10_sample"
    dataset = sfl.data.load(dataset)
    data = sfl.federate(dataset, "dirichlet", 20, alpha=0.5, seed=seed)
    model = sfl.models.build(name, data.num_classes, data.x.shape[1:])
    model = model.reading(sfl.data.make_preprocess(data.mean, data.std))
    optimizer = sfl.training.make_optimizer("sgd", learning_rate=0.05, momentum=0.9)
    method, found = sfl.fedavg(model, optimizer), []
    stages = [sfl.Stage(method, rounds, 10), sfl.Stage(method, 1, 1)]
    key, every = jax.random.key(seed), rounds + 1
    for segment in sfl.segments(key, stages, model, data, eval_every=every):
        found.append((segment.snapshot.stage, segment.models["global"].params))
        found[-1] = jax.device_get(found[-1])
    before = [params for stage, params in found if stage == 0][-1]
    update = jax.tree.map(np.subtract, found[-1][1], before)
    select = masks.prunable(model.macs)
    kernels = (trees.split(tree, select)[0] for tree in (before, update))
    return dict(zip(("weights", "update"), kernels, strict=True))
