"""Every configuration runs with every method of its paper."""

import importlib
from pathlib import Path

import jax
import numpy as np
import pytest

import configs
from configs import compressed_cifar10
from sparsefl_jax.presets import complement, fedsparsify, flash, spafl
from sparsefl_jax.runs import experiment, simulate

METHODS = {
    "flash": flash.METHODS,
    "spafl": (*spafl.METHODS, "without13", "thresholds_only", "fedpm,initial"),
    "fedsparsify": fedsparsify.METHODS,
    "complement": complement.METHODS,
    "compressed": tuple(compressed_cifar10.RIVALS),
}  # of others, the default
FILES = sorted(p.stem for p in Path(configs.__file__).parent.glob("[a-z]*.py"))
for name in ("shakespeare", "flash_sst2", "flasc_sst2"):  # networks of tokens
    FILES.remove(name)
QUICK = ("complement_sst2", "cs")  # the others take long to compile
SHAPES = {"mlp": (6, 6, 1), "sa": (24,)}  # of samples
CLIENTS, ROUNDS = 10, 3


def small(file, method, folder):
    """Shrinks a configuration to three rounds of a few samples and a narrow network."""
    module = importlib.import_module(f"configs.{file}")
    config = module.get_config(method) if method else module.get_config()
    config.num_rounds = config.eval_every = ROUNDS
    if config.first_stage:
        config.first_stage.num_rounds = 1
    if config.first_stage.get("cohort_size"):
        config.first_stage.cohort_size = min(config.first_stage.cohort_size, CLIENTS)
    if "max_iterations" in config.first_stage:
        config.first_stage.max_iterations = 1  # which is no more than an epoch
    if config.model.name not in ("mlp", "sa"):
        config.model = {"name": "mlp"}
        for section in (config.first_stage, config.algorithm):
            globs = section.get("prunable", ())
            if any("conv" in glob for glob in globs):
                section.prunable = ("fc[12]/kernel",)
            elif len(globs) > 1:
                section.prunable = ("*",)  # and of what the MLP has not none
    config.model.widths = (16, 12) if config.model.name == "mlp" else (32,)
    config.dataset = write_samples(folder / "samples.npz", SHAPES[config.model.name])
    config.data_dir = config.writers = config.num_classes = None
    config.num_clients = config.cohort_size = CLIENTS
    config.augment = ()
    if "min_samples" in config.partition:
        config.partition.min_samples = 1
    if "samples_per_class" in config.partition:
        config.partition.samples_per_class = 10
    if config.algorithm.get("adjust_until") == ROUNDS // 2:
        config.algorithm.adjust_until = 2  # the least that there is
    if config.partition.name in ("lda", "dirichlet"):
        config.partition.alpha = 100.0  # otherwise some clients would have no samples
    if config.algorithm.get("layers"):
        config.algorithm.layers = 1
    config.epochs, config.batch_size = min(config.epochs, 2), 8
    return config


def write_samples(path, shape):
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 10
    x = rng.integers(0, 256, (400, *shape), dtype=np.uint8)
    if len(shape) == 1:
        x = x.astype(np.float32) / 256
    users = np.arange(300) // (300 // CLIENTS)
    tests = {"x_test": x[300:], "y_test": labels[300:]}
    np.savez(path, x=x[:300], y=labels[:300], users=users, **tests)
    return str(path)


def cases():
    for file in FILES:
        for method in METHODS.get(file.split("_")[0], ("",)):
            marks = () if (file, method) == QUICK else pytest.mark.slow
            yield pytest.param(file, method, marks=marks, id=f"{file}:{method}")


@pytest.mark.parametrize("file, method", list(cases()))
def test_every_file_runs_with_every_method(file, method, tmp_path):
    config = small(file, method, tmp_path)
    setup = experiment.build(config).setup
    told = simulate.run(jax.random.key(config.seed), **setup._asdict()).metrics
    rounds = [r["stage"] for r in told if r["phase"] == "train"]
    lengths = [stage.num_rounds for stage in setup.stages]
    assert [rounds.count(stage) for stage in range(len(lengths))] == lengths
    assert 0 <= told[-1]["accuracy"] <= 1 and told[-1]["gbit_cumulative"] > 0
