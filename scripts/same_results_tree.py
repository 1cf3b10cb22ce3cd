"""Runs the configurations of `same_results.py` in one tree.

`same_results.py` starts this file once in each tree, with PYTHONPATH set to that tree.
Packages are imported once. Every run is a fork of this process that calls the tree's
`launch.py`, so this file does not depend on the tree's layout of modules.
"""

import argparse
import importlib
import os
import runpy
import sys
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CONV = {"dataset": "gray", "num_rounds": 1, "eval_every": 1, "epochs": 1}
COLOUR = CONV | {"dataset": "colour"}
HALF = {"density": 0.5}
FIRST = {"name": "sensitivity", "density": 0.5, "num_rounds": 1, "cohort_size": 1}
PRUNEFL = {"constant_time": 1e9, "max_density": 0.5}
SNIP = {"name": "snip", "density": 0.3, "num_rounds": 1, "cohort_size": 1}
ADAPTER = {"rank": 4, "targets": ("fc1/kernel",), "whole": ("fc2/*",)}
BUDGETS = ((0.25, 0.5), (0.5, 0.5))
MORE = ("--resume", "--config.num_rounds=4")

# Name: (the algorithm, other fields, devices, further calls of launch.py).
RUNS = {
    "fedavg": ({"name": "fedavg"}, {}, 1, ()),
    "fedavg_momentum": (
        {"name": "fedavg", "keep_optimizer": True, "weighting": "uniform"},
        {"optimizer": {"momentum": 0.9, "weight_decay": 1e-3, "clip": 1.0}},
        2,
        (),
    ),
    "fedavg_adam": (
        {"name": "fedavg"},
        {"server_optimizer": {"name": "adam"}, "drop_last": True},
        2,
        (),
    ),
    "ditto": ({"name": "ditto", "lam": 0.5}, {"metric": "clients"}, 2, ()),
    "fedavg_pruned": ({"name": "fedavg", "prune": 0.3}, {}, 1, ()),
    "fedluar": ({"name": "fedluar"}, {}, 2, ()),
    "fedprox": ({"name": "fedprox", "mu": 0.1}, {"val_fraction": 0.2}, 2, ()),
    "quantized": ({"name": "quantized", "bits": 4}, {}, 2, ()),
    "pdst": ({"name": "pdst"} | HALF, {}, 2, ()),
    "nst": ({"name": "nst"} | HALF, {"final_learning_rate": 0.01}, 2, ()),
    "spdst": ({"name": "spdst"}, {"first_stage": FIRST}, 2, ()),
    "spdst_resumed": ({"name": "spdst"}, {"first_stage": FIRST}, 2, (MORE,)),
    "jmwst": ({"name": "jmwst"} | HALF, {"first_stage": FIRST}, 2, ()),
    "jmwst_two": (
        {"name": "jmwst", "r_int": 2, "index": "coo"} | HALF,
        {"first_stage": FIRST, "num_rounds": 4},
        1,
        (),
    ),
    "hetero_spdst": (
        {"name": "hetero_spdst", "densities": (0.25, 0.5)},
        {"first_stage": FIRST, "budgets": BUDGETS, "cohort_size": 4},
        2,
        (),
    ),
    "hetero_jmwst": (
        {"name": "hetero_jmwst", "densities": (0.25, 0.5)},
        {"first_stage": FIRST, "budgets": BUDGETS, "cohort_size": 4},
        2,
        (),
    ),
    "snip": ({"name": "spdst"}, {"first_stage": SNIP}, 2, ()),
    "ssfl": ({"name": "spdst"}, {"first_stage": SNIP | {"name": "ssfl"}}, 2, ()),
    "feddst": ({"name": "feddst", "adjust_until": 3} | HALF, {}, 2, ()),
    "fedspa": ({"name": "fedspa"} | HALF, {}, 2, ()),
    "fedspa_dst": (
        {"name": "fedspa", "mask_update": "dst", "adjust_until": 3} | HALF,
        {},
        2,
        (),
    ),
    "fedrts": ({"name": "fedrts", "adjust_every": 1} | HALF, {}, 2, ()),
    "fedtiny": ({"name": "fedtiny", "adjust_every": 1} | HALF, {}, 2, ()),
    "fedmef": (
        {"name": "fedmef", "adjust_every": 1, "keep_inputs": 0.5} | HALF,
        {"final_learning_rate": 0.01},
        2,
        (),
    ),
    "grasp": ({"name": "spdst"}, {"first_stage": SNIP | {"name": "grasp"}}, 2, ()),
    "prunefl": (
        {"name": "prunefl", "reconfigure_every": 2} | PRUNEFL,
        {
            "first_stage": FIRST
            | {"name": "prunefl_initial", "max_iterations": 4, "density": None}
            | PRUNEFL
        },
        2,
        (),
    ),
    "complement": ({"name": "complement"} | HALF, {}, 2, ()),
    "compressed": ({"name": "compressed", "density": 0.1}, {}, 2, ()),
    "compressed_stc": (
        {"name": "compressed", "up": "stc", "down": "stc", "density": 0.1},
        {},
        2,
        (),
    ),
    "pqsu": (
        {"name": "pqsu"} | HALF,
        {"first_stage": {"name": "fedavg", "num_rounds": 1}},
        2,
        (),
    ),
    "pqsu_up": ({"name": "pqsu", "quantize": "up"} | HALF, {}, 1, ()),
    "fedsparsify_global": (
        {"name": "fedsparsify_global", "rounds": 2, "density": 0.3},
        {},
        2,
        (),
    ),
    "fedsparsify_random": (
        {"name": "fedsparsify_global", "rounds": 2, "density": 0.3}
        | {"criterion": "random"},
        {},
        2,
        (),
    ),
    "fedsparsify_local": (
        {"name": "fedsparsify_local", "rounds": 2, "density": 0.3},
        {},
        2,
        (),
    ),
    "magnitude": (
        {"name": "magnitude"} | HALF,
        {"first_stage": {"name": "fedavg", "num_rounds": 1}},
        2,
        (),
    ),
    "finetune": (
        {"name": "finetune", "scale": 0.5},
        {"first_stage": {"name": "fedavg"}, "cohort_size": 8, "num_rounds": 1},
        2,
        (),
    ),
    "scaffold": ({"name": "scaffold", "clients": 8}, {}, 2, ()),
    "sparsyfed": ({"name": "sparsyfed"} | HALF, {}, 2, ()),
    "zerofl": ({"name": "zerofl"} | HALF, {}, 2, ()),
    "spafl": ({"name": "spafl", "alpha": 0.05}, {"metric": "clients"}, 2, ()),
    "spafl_kept": (
        {"name": "spafl", "alpha": 0.05, "keep_optimizer": True, "clamp": True},
        {"optimizer": {"momentum": 0.9}},
        1,
        (),
    ),
    "spafl_host": ({"name": "spafl"}, {"client_store": "host"}, 2, ()),
    "spafl_disk": ({"name": "spafl"}, {"client_store": "disk"}, 2, (MORE,)),
    "spafl_one": ({"name": "spafl"}, {"client_store": "device"}, 1, ()),
    "local_only": ({"name": "local_only", "alpha": 0.05}, {}, 2, ()),
    "fedmrn": ({"name": "fedmrn"}, {}, 2, ()),
    "fedbat": ({"name": "fedbat"}, {}, 2, ()),
    "fedpm": ({"name": "fedpm"}, {"optimizer": {"name": "adam"}}, 2, ()),
    "fedpm_host": (
        {"name": "fedpm", "weights": "initial"},
        {"client_store": "host", "optimizer": {"name": "adam"}},
        1,
        (),
    ),
    "heterofl": ({"name": "heterofl"}, {"budgets": BUDGETS, "cohort_size": 4}, 2, ()),
    "flasc": ({"name": "flasc"} | HALF, {"adapter": ADAPTER}, 2, (MORE,)),
    "flasc_masked": (
        {"name": "flasc", "train": "masked", "decay": 0.9} | HALF,
        {},
        1,
        (),
    ),
    "rank_tiers": (
        {"name": "rank_tiers"},
        {"adapter": ADAPTER, "budgets": BUDGETS, "cohort_size": 4},
        2,
        (),
    ),
    "fedrolex": ({"name": "fedrolex"}, {"budgets": BUDGETS, "cohort_size": 4}, 2, ()),
    "fiarse": ({"name": "fiarse"}, {"budgets": BUDGETS, "cohort_size": 4}, 2, ()),
    "fjord": ({"name": "fjord", "widths": (0.5, 1.0)}, {}, 2, ()),
    "fjord_distilled": (
        {"name": "fjord", "widths": (0.5, 1.0), "distill": True},
        {},
        2,
        (),
    ),
    "chunks": ({"name": "nst"} | HALF, {"chunk": "1", "cohort_size": 4}, 2, ()),
    "three_seeds": ({"name": "fedavg"}, {"seeds": 2}, 2, ()),
    "bfloat16": ({"name": "fedavg"}, {"model": {"dtype": "bfloat16"}}, 1, ()),
    "lenet5_caffe": (
        {"name": "spafl", "alpha": 0.05},
        CONV | {"model": {"name": "lenet5_caffe", "widths": (3, 4, 6)}},
        2,
        (),
    ),
    "mnistnet": (
        {"name": "pdst"} | HALF,
        CONV | {"first_stage": {}, "model": {"name": "mnistnet", "widths": (3, 4, 6)}},
        2,
        (),
    ),
    "conv4": (
        {"name": "fedpm"},
        COLOUR | {"model": {"name": "conv4", "norm": None, "widths": (3,) * 6}},
        2,
        (),
    ),
    "fedsparsify_cnn": (
        {"name": "fedavg"},
        COLOUR
        | {"augment": ("flip",)}
        | {"model": {"name": "fedsparsify_cnn", "widths": (3,) * 7}},
        2,
        (),
    ),
    "small_cnn": (
        {"name": "heterofl"},
        COLOUR
        | {"budgets": BUDGETS, "cohort_size": 4}
        | {"model": {"name": "small_cnn", "widths": (4,) * 4}},
        2,
        (),
    ),
    "resnet18": (
        {"name": "nst"} | HALF,
        COLOUR | {"model": {"name": "resnet18", "base": 2, "norm": "group"}},
        2,
        (),
    ),
    "vgg16": (
        {"name": "fjord", "widths": (0.5, 1.0)},
        COLOUR | {"model": {"name": "vgg16", "widths": (2,) * 13}},
        2,
        (),
    ),
}
QUICK = ("spdst", "spafl_disk", "jmwst", "fedpm_host", "complement")


def found(*names: str):
    """Imports the first of these modules that exists in the working directory."""
    for name in names:
        path = Path("sparsefl_jax", *name.split("."))
        if path.is_dir() or path.with_suffix(".py").exists():
            return importlib.import_module(f"sparsefl_jax.{name}")
    raise ModuleNotFoundError(f"the tree has none of {', '.join(names)}")


def get_config(name: str):
    """Returns a row of `RUNS` as a configuration, for `--config=FILE:NAME`."""
    older = "runs.config.defaults", "runs.config.objects", "configuration"
    defaults = found("config.defaults", *older)
    algorithm, fields, _, _ = RUNS[name]
    config = defaults.default_config()
    samples = Path(os.environ["SAME_RESULTS_SAMPLES"])
    config.dataset = str(samples / f"{fields.get('dataset', 'pixels')}.npz")
    config.normalize = False
    config.num_clients, config.cohort_size, config.batch_size = 8, 3, 8
    config.num_rounds = config.eval_every = 2
    config.model = {"name": "mlp", "widths": (16,)}
    config.algorithm = algorithm
    for field, value in fields.items():
        if field == "dataset":
            continue
        if isinstance(value, dict) and field in ("model", "optimizer"):
            config[field].update(value)
            if "name" in value and field == "model" and "widths" not in value:
                del config.model["widths"]
        elif isinstance(value, dict) and field != "first_stage":
            config[field].update(value)
        elif isinstance(value, dict):
            config[field] = {k: v for k, v in value.items() if v is not None}
        else:
            config[field] = value
    return config


def in_a_fork(work) -> bool:
    """Runs `work()` in a fork of this process, and returns whether it succeeded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX has threads, but none has started yet
        pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    code = 1
    try:
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(name: str, folder: Path) -> bool:
    """Runs a row of `RUNS` in `folder / name`, with its output in a log beside it."""
    _, _, devices, more = RUNS[name]
    workdir = folder / name

    def launch(*flags):
        _redirect(folder / f"{name}.log")
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
        sys.argv = ["launch.py", f"--workdir={workdir}", *flags]
        _draw_nothing()
        runpy.run_path("launch.py", run_name="__main__")

    def keep():
        _redirect(folder / f"{name}.log")
        for file in ("checkpoint", "checkpoint.npz"):  # of older trees, and of newer
            for saved in sorted(workdir.rglob(file)):
                keep_models(saved.parent)

    config = f"--config={Path(__file__).resolve()}:{name}"
    calls = [(config,), *more]
    return all(in_a_fork(lambda c=c: launch(*c)) for c in calls) and in_a_fork(keep)


def _redirect(log: Path) -> None:
    """Redirects the output of this process to a file."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)


def _draw_nothing() -> None:
    """Skips plots and pages, which would take longer than these runs."""
    report = found("report")
    for name in ("plot_run", "write_page", "write_comparison"):
        if hasattr(report, name):
            setattr(report, name, lambda *args, **kwargs: None)


def keep_models(workdir: Path) -> None:
    """Writes the models of a run and of two of its clients to its `models.npz`."""
    import jax
    import numpy as np

    import sparsefl_jax

    load_run = getattr(sparsefl_jax, "load_run", None) or sparsefl_jax.load
    models = {"server": load_run(workdir).models}
    try:
        models["clients"] = sparsefl_jax.load_clients(workdir, [0, 5])
    except ValueError as error:
        if "no personal models" not in str(error):
            raise
    leaves = jax.tree_util.tree_leaves_with_path(models)
    named = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
    np.savez(workdir / "models.npz", **named)


def main() -> None:
    """Runs the named rows in the tree that is the working directory."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    # An editable installation would supply modules that the tree itself lacks.
    sys.meta_path = [
        finder
        for finder in sys.meta_path
        if not getattr(finder, "__module__", "").startswith("__editable__")
    ]
    for package in ("sparsefl_jax", "ml_collections.config_flags"):
        importlib.import_module(package)
    with ThreadPoolExecutor(args.jobs) as pool:
        succeeded = list(pool.map(lambda name: run(name, args.folder), args.names))
    sys.exit(0 if all(succeeded) else 1)


if __name__ == "__main__":
    main()
