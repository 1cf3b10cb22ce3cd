"""Bad input: each answered in one line that names it, before anything is compiled."""

import math
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from absl import flags
from ml_collections import config_dict

from sparsefl_jax import models
from sparsefl_jax.runs import cli, experiment, loop
from sparsefl_jax.runs.config import fields, objects, rename
from tests.tiny import network, tiny_config

ROOT = Path(__file__).parent.parent
NAN, INF = math.nan, math.inf
LDA, SENSITIVITY = {"name": "lda"}, {"name": "sensitivity", "density": 0.5}
HETERO = {"name": "hetero_jmwst"}
SPARSIFY = {"name": "fedsparsify_global", "density": 0.5}

# What is changed in a configuration that runs, and what the line must say.
REFUSED = [
    # unknown and missing names
    ({"algorithm.name": "spdts"}, "did you mean 'spdst'"),
    ({"model.name": "resnet19"}, "did you mean 'resnet18'"),
    ({"partition.name": "ldaa"}, "did you mean 'lda'"),
    ({"optimizer.name": "sdg"}, "did you mean 'sgd'"),
    ({"optimizer.name": "scale"}, "optimizer.name='scale'"),
    ({"optimizer.name": "lbfgs"}, "optimizer.name='lbfgs'"),
    ({"dataset": "cifar1o"}, "cifar10"),
    ({"test_split": "withn"}, "test_split='withn'"),
    ({"init_what": "masks"}, "did you mean 'mask'"),
    ({"sinks": ("tensorbord",)}, "did you mean 'tensorboard'"),
    ({"augment": ("rotate",)}, "augment='rotate'"),
    ({"algorithm.index": "csc"}, "index='csc'"),
    ({"algorithm.prunable": ("conv9/kernel",)}, "'conv9/kernel' matches no leaf"),
    ({"algorithm.prunable": ()}, "patterns=()"),
    ({"algorithm": {"name": "json:dumps"}}, "algorithm.name='json:dumps'"),
    ({"algorithm": {"name": "json:__name__"}}, "is not a callable object"),
    ({"algorithm": {"name": ".x:y"}}, "algorithm.name='.x:y'"),
    ({"algorithm": {"name": "builtins:max"}}, "algorithm.name='builtins:max'"),
    ({"algorithm": {}}, "algorithm.name is missing"),
    ({"model": {}}, "model.name is missing"),
    ({"first_stage": {"density": 0.5}}, "first_stage.name is missing"),
    ({"algorithm": {"name": "pdst"}}, "algorithm.density is missing"),
    # misspelt fields
    ({"num_round": 3}, "no field num_round; did you mean 'num_rounds'"),
    ({"until.gbits": 3.0}, "no field until.gbits; did you mean 'gbit'"),
    ({"model.width": 3}, "did you mean 'widths'"),
    ({"optimizer.momentm": 0.9}, "did you mean 'momentum'"),
    ({"first_stage.densty": 0.9}, "did you mean 'density'"),
    ({"partition.seed": 1}, "no field partition.seed"),
    ({"model.num_classes": 9}, "no field model.num_classes"),
    ({"optimizer.schedule": "cosine"}, "no field optimizer.schedule"),
    # wrong types
    ({"cohort_size": "ten"}, "cohort_size='ten', expected an integer"),
    ({"cohort_size": 2.5}, "cohort_size=2.5, expected an integer"),
    ({"num_rounds": None}, "num_rounds=None, expected an integer"),
    ({"batch_size": ()}, "batch_size=(), expected an integer"),
    ({"seed": 2**31}, "seed=2147483648, expected an integer below 2**31"),
    ({"normalize": "no"}, "normalize='no', expected True or False"),
    ({"augment": "flip"}, "augment='flip', expected a tuple"),
    ({"dataset": 3}, "dataset=3, expected a string"),
    ({"model.name": 5}, "model.name=5, expected a string"),
    ({"model": "mlp"}, "model='mlp', expected a section"),
    ({"model.widths": 16}, "model.widths=16, expected a tuple, each an integer"),
    ({"model.widths": (16, "a")}, "model.widths=(16, 'a')"),
    ({"first_stage.density": "0.1"}, "first_stage.density='0.1', expected a finite"),
    ({"first_stage.epochs": 1.5}, "first_stage.epochs=1.5, expected an integer"),
    ({"algorithm": {"name": "fedprox", "mu": True}}, "algorithm.mu=True"),
    ({"algorithm": {"name": "fedavg", "keep_optimizer": 1}}, "keep_optimizer=1"),
    ({"algorithm": HETERO | {"densities": 0.5}}, "algorithm.densities=0.5"),
    ({"partition": LDA | {"alpha": "small"}}, "partition.alpha='small'"),
    ({"budgets": (0.5, 1)}, "budgets=(0.5, 1), expected a tuple, each a tuple"),
    ({"observe_rounds": ("a",)}, "observe_rounds=('a',)"),
    # not finite
    ({"optimizer.learning_rate": NAN}, "optimizer.learning_rate=nan"),
    ({"optimizer.learning_rate": INF}, "optimizer.learning_rate=inf"),
    ({"optimizer.weight_decay": NAN}, "optimizer.weight_decay=nan"),
    ({"server_optimizer.learning_rate": NAN}, "server_optimizer.learning_rate=nan"),
    ({"final_learning_rate": NAN}, "final_learning_rate=nan"),
    ({"first_stage.density": NAN}, "first_stage.density=nan"),
    ({"first_stage.prune_rate": NAN}, "first_stage.prune_rate=nan"),
    ({"partition": LDA | {"alpha": NAN}}, "partition.alpha=nan"),
    ({"val_fraction": NAN}, "val_fraction=nan"),
    ({"input_scale": INF}, "input_scale=inf"),
    ({"until.gbit": NAN}, "until.gbit=nan"),
    ({"checkpoint_minutes": NAN}, "checkpoint_minutes=nan"),
    # out of range
    ({"seed": -1}, "seed=-1, expected at least 0"),
    ({"partition_seed": -1}, "partition_seed=-1"),
    ({"seeds": 0}, "seeds=0, expected at least 1"),
    ({"seeds": 2, "seed": 2**31 - 1}, "seeds=2 from seed=2147483647"),
    ({"num_clients": -1}, "num_clients=-1"),
    ({"num_clients": 161}, "num_clients=161"),
    ({"cohort_size": 0}, "cohort_size=0, expected at least 1"),
    ({"cohort_size": 9}, "cohort_size=9, expected at most the number of clients, 8"),
    ({"batch_size": 0}, "batch_size=0"),
    ({"epochs": 0}, "epochs=0"),
    ({"num_rounds": 0}, "num_rounds=0"),
    ({"first_stage.num_rounds": 0}, "num_rounds=0"),
    ({"eval_every": 0}, "eval_every=0"),
    ({"chunk": "0"}, "chunk='0'"),
    ({"chunk": "many"}, "chunk='many'"),
    ({"density": 1.5}, "density=1.5, expected in (0, 1]"),
    ({"first_stage.density": 0.0}, "density=0.0, expected in (0, 1]"),
    ({"first_stage.density": 1.5}, "density=1.5, expected in (0, 1]"),
    ({"first_stage.prune_rate": 2.0}, "prune_rate=2.0"),
    ({"first_stage.group": 7}, "m=7, but 'fc1/kernel' has 6 inputs"),
    ({"first_stage.group": -1}, "group=-1"),
    ({"algorithm": HETERO | {"densities": ()}}, "densities=()"),
    ({"algorithm": HETERO | {"densities": (0.5, 2.0)}}, "density=2.0"),
    ({"algorithm": {"name": "fedprox", "mu": -1.0}}, "mu=-1.0"),
    ({"algorithm": {"name": "jmwst", "density": 0.5, "r_int": 0}}, "r_int=0"),
    ({"partition": LDA | {"alpha": 0.0}}, "alpha=0.0"),
    ({"partition": {"name": "shards", "k": 9}}, "k=9"),
    ({"partition": {"name": "natural"}}, "needs a data set with users"),
    ({"val_fraction": 1.0}, "val_fraction=1.0"),
    ({"input_scale": 0.0}, "scale=0.0"),
    ({"model.widths": (16, 0)}, "widths=(16, 0)"),
    ({"model": {"name": "small_cnn"}}, "larger than the image"),
    ({"model": {"name": "resnet18", "base": 0}}, "base=0"),
    ({"optimizer.learning_rate": -0.1}, "learning_rate=-0.1"),
    ({"optimizer.clip": -1.0}, "clip=-1.0"),
    ({"optimizer.learning_rate": 0.0, "final_learning_rate": 0.1}, "learning_rate=0.0"),
    ({"final_learning_rate": 0.0}, "final_learning_rate=0.0"),
    *(
        ({"final_learning_rate": 0.01, "lr_decay": v}, f"lr_decay={v}, expected in (0,")
        for v in (-0.5, 0.0, 1.0, 2.0)
    ),
    (
        {"final_learning_rate": 0.5, "lr_decay": 0.9},
        "final_learning_rate=0.5, expected at most optimizer.learning_rate=0.1",
    ),
    ({"optimizer.momentum": -5.0}, "momentum=-5.0, expected in [0, 1)"),
    ({"optimizer.momentum": 1.0}, "momentum=1.0, expected in [0, 1)"),
    ({"optimizer": {"name": "adam", "b1": 1.0}}, "b1=1.0, expected in [0, 1)"),
    ({"optimizer": {"name": "adam", "b2": -0.1}}, "b2=-0.1, expected in [0, 1)"),
    ({"optimizer": {"name": "rmsprop", "decay": 2.0}}, "decay=2.0, expected in [0, 1)"),
    ({"optimizer": {"name": "adam", "eps": -1e-8}}, "eps=-1e-08, expected in [0, inf)"),
    (
        {
            "server_optimizer.name": "sgd",
            "server_optimizer.momentum": -5.0,
            "algorithm": {"name": "fedavg"},
        },
        "momentum=-5.0, expected in [0, 1)",
    ),
    *(
        (
            {section: {"name": name, key: value}},
            f"{name}: {key}=1e-09, expected at least 0.0063 to leave one of 160 weig",
        )
        for section, name, key, value in (
            ("first_stage", "sensitivity", "density", 1e-9),
            ("first_stage", "snip", "density", 1e-9),
            ("algorithm", "pdst", "density", 1e-9),
            ("algorithm", "prunefl", "max_density", 1e-9),
            ("algorithm", "hetero_spdst", "densities", (1e-9, 0.5)),
        )
    ),
    (  # of 96 weights of one layer
        {"first_stage.density": 0.01, "first_stage.prunable": ("fc1/kernel",)},
        "sensitivity: density=0.01, expected at least 0.01 to leave one of 96 weights",
    ),
    ({"num_classes": 2**30}, "the network has 2**31 parameters or more"),
    ({"model.widths": (2**30,)}, "the network has 2**31 parameters or more"),
    ({"model": {"name": "sa", "widths": (2**29,)}}, "2**31 parameters or more"),
    (
        {"algorithm": SPARSIFY | {"rounds": 2**31 - 1}},
        "rounds=2147483647, expected an integer from 2 to 1000000",
    ),
    (
        {"algorithm": SPARSIFY | {"rounds": 4, "frequency": 5}},
        "frequency=5, expected an integer from 1 to 4",
    ),
    ({"partition": {"name": "natural", "min_samples": 0}}, "min_samples=0"),
    ({"lr_horizon": 0}, "lr_horizon=0"),
    ({"lr_delay": -1}, "lr_delay=-1"),
    ({"budgets": ((0.5,),)}, "budgets=((0.5,),), expected pairs"),
    ({"budgets": ((0.5, 1.5), (1.0, -0.5))}, "expected pairs"),
    ({"budgets": ((0.5, 0.6), (1.0, 0.6))}, "sum to 1"),
    ({"budgets": ((1.0, 1.0),), "num_clients": 0, "partition": LDA}, "num_clients"),
    ({"checkpoint_minutes": -1.0}, "checkpoint_minutes=-1.0"),
    ({"until.gbit": 0.0}, "until.gbit=0.0, expected above 0"),
    ({"until.pflop": -2.0}, "until.pflop=-2.0"),
    ({"until.accuracy": 97.0}, "until.accuracy=97.0, expected in (0, 1]"),
    ({"observe_rounds": (0,)}, "observe_rounds=(0,), expected rounds from 1"),
    ({"observe_rounds": (2, 5)}, "to num_rounds=4"),
    ({"init_from": "no/such/run"}, "no/such/run"),
]


def change(config, values: dict) -> None:
    """Sets fields by dotted name, even to a wrong type, with defaults filled in."""
    with config.ignore_type(), config.unlocked():
        for field, value in values.items():
            section, _, name = field.rpartition(".")
            (config[section] if section else config)[name] = value
    if not any(isinstance(config[f], str) for f in objects.TABLES):
        objects.complete(config)


def refused(call, told: str) -> None:
    with pytest.raises(ValueError) as caught:
        call()
    assert told in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("values, told", REFUSED, ids=lambda v: str(v)[:60])
def test_configuration_is_refused(tmp_path, monkeypatch, values, told):
    config = tiny_config(tmp_path)
    change(config, values)
    monkeypatch.setattr(loop, "go_on", None)  # nothing runs
    refused(lambda: experiment.run(config, tmp_path / "run", progress=False), told)
    assert not (tmp_path / "run").exists()


def test_what_is_no_whole_configuration_is_refused(tmp_path):
    refused(lambda: fields.check({"seed": 0}), "is a dict, expected a ConfigDict")
    values = tiny_config(tmp_path).to_dict()
    del values["epochs"]
    refused(lambda: fields.check(config_dict.ConfigDict(values)), "lacks the field")


def test_lists_and_whole_numbers_are_as_good_as_tuples_and_floats(tmp_path):
    config = tiny_config(tmp_path)
    read_back = config_dict.ConfigDict(config.to_dict())
    change(read_back, {"model.widths": [16], "optimizer.learning_rate": 1})
    fields.check(read_back)


# --- data

IMAGES = np.zeros((40, 2, 3, 1), np.float32)
LABELS = np.arange(40) % 4
GOOD = {"x": IMAGES, "y": LABELS, "x_test": IMAGES, "y_test": LABELS}


class Trap:
    """Creates a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


BAD_ARRAYS = [
    ({"y": LABELS[:39]}, "y has 39 labels for 40 samples"),
    ({"x_test": IMAGES[:39]}, "y_test has 40 labels for 39 samples"),
    ({"y": LABELS - 1}, "labels from -1"),
    ({"y": LABELS + 2**32}, "labels from 4294967296"),
    ({"y": LABELS * 10**6}, "labels up to 3000000"),
    ({"y": LABELS / 2}, "expected integers"),
    ({"x": IMAGES + NAN}, "x has values that are not finite"),
    ({"x_test": IMAGES - INF}, "x_test has values that are not finite"),
    ({"x": IMAGES.astype(float) + 1e39}, "x has values that are not finite"),
    ({"x": IMAGES[:, :1]}, "x_test has samples"),
    ({"x": IMAGES[:0], "y": LABELS[:0]}, "x has shape (0, 2, 3, 1)"),
    ({"users": np.arange(39)}, "users has shape (39,)"),
]


@pytest.mark.parametrize("arrays, told", BAD_ARRAYS, ids=lambda v: str(v)[:40])
def test_arrays_are_refused(tmp_path, arrays, told):
    config = tiny_config(tmp_path)
    config.dataset = str(tmp_path / "bad.npz")
    np.savez(config.dataset, **GOOD | arrays)
    refused(lambda: experiment.build(config), told)


def damaged(path: Path, how: str) -> None:
    """Writes a good archive and spoils it."""
    np.savez_compressed(path, **GOOD)
    whole = path.read_bytes()
    if how == "cut off":
        path.write_bytes(whole[: len(whole) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "text":
        path.write_text("no archive")
    elif how == "array":
        with open(path, "wb") as file:
            np.save(file, IMAGES)
    elif how == "flipped":  # the compressed bytes of the first array
        path.write_bytes(whole[:50] + b"\xff" * 20 + whole[70:])
    elif how == "other zip":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("x.txt", "text")
    elif how == "lacks y":
        np.savez(path, x=IMAGES, x_test=IMAGES, y_test=LABELS)
    else:
        path.unlink()


HOW = ("cut off", "empty", "text", "array", "flipped", "other zip", "lacks y", "absent")


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("field", ["dataset", "writers"])
def test_files_are_refused(tmp_path, how, field):
    config = tiny_config(tmp_path)
    config[field] = str(tmp_path / "bad.npz")
    damaged(tmp_path / "bad.npz", how)
    refused(lambda: experiment.build(config), "bad.npz")


@pytest.mark.parametrize("key", list(GOOD))
def test_nothing_is_unpickled(tmp_path, key):
    config = tiny_config(tmp_path)
    config.dataset = str(tmp_path / "bad.npz")
    trap = np.array([Trap(tmp_path / "sprung")] * 40, object)
    np.savez(config.dataset, **GOOD | {key: trap})
    refused(lambda: experiment.build(config), "it holds Python objects")
    assert not (tmp_path / "sprung").exists()


# --- the command line

FILE = """
from sparsefl_jax.runs.config.objects import default_config

def get_config(arg):
    config = default_config()
    {}
    return config
"""
MINI = "configs/flash_cifar10.py:mini"
LINES = [
    ([f"--config={MINI}", "--config.cohort_size=ten"], "cohort_size=ten"),
    ([f"--config={MINI}", "--config.cohort_size=2.5"], "cohort_size=2.5"),
    ([f"--config={MINI}", "--config.cohort_sise=3"], "did you mean 'cohort_size'"),
    ([f"--config={MINI}", "--config.until.gbits=3"], "did you mean 'gbit'"),
    ([f"--config={MINI}", "--config.algorithm.densty=3"], "no field 'densty'"),
    ([f"--config={MINI}", "--config.seed.x=3"], "seed.x"),
    ([f"--config={MINI}", "--config.budgets=abc"], "budgets=('abc',)"),
    ([f"--config={MINI}", "--config.normalize=maybe"], "maybe"),
    ([f"--config={MINI}", "--config.algorithm=5"], "--config.algorithm=5"),
    ([f"--config={MINI}", "--confg=5"], "confg"),
    (["--config=configs/no_such.py"], "--config=configs/no_such.py: there is no such"),
    (["--config=spafl_fmnist:release"], "you mean configs/spafl_fashion_mnist.py?"),
]
FILES = [
    ("config.num_clinets = 3", "did you mean 'num_clients'"),
    ("config.num_clients = 'many'", "num_clients"),
    ("config.optimizer.learning_rate = float('nan')", "learning_rate=nan"),
    ("raise ValueError('first\\nsecond')", "first second"),
    ("{}['gone']", "gone"),
    ("assert False", "AssertionError"),
    ("config.model.name.width", "width"),
    ("config = {'seed': 1}", "is a dict"),
    ("config = )", "mine.py, line 6"),
]


def launched(monkeypatch, capsys, arguments: list[str]) -> tuple[int, str]:
    """Exit code and standard error of `launch.py`, without a new process."""
    values = flags.FlagValues()
    config = cli.define_config(values)
    monkeypatch.setattr(sys, "argv", ["launch.py", *arguments])
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(loop, "go_on", None)
    monkeypatch.delenv("SPARSEFL_DEBUG", raising=False)
    app = SimpleNamespace(run=lambda main, flags_parser: main(flags_parser(sys.argv)))
    with pytest.raises(SystemExit) as ended:
        cli.guarded(
            app,
            SimpleNamespace(FLAGS=values),
            lambda argv: cli.run(config.value, None),
        )
    return ended.value.code, capsys.readouterr().err


@pytest.mark.parametrize("arguments, told", LINES, ids=lambda v: str(v)[-40:])
def test_a_command_line_is_refused(monkeypatch, capsys, arguments, told):
    code, err = launched(monkeypatch, capsys, arguments)
    assert code == 2 and err.startswith("error: ") and told in err
    assert err.count("\n") == 1 and "\\n" not in err


SWITCHED = [  # a file, flags, a section, what it must hold
    (
        "spafl_fashion_mnist.py",
        "--config.algorithm.name=fedpm",
        "algorithm",
        {"name": "fedpm", "keep_optimizer": True, "epsilon": 0.01},
    ),
    (
        "spafl_fashion_mnist.py",
        "--config.algorithm.mu 0.5 --config.algorithm.name fedprox",
        "algorithm",
        {"name": "fedprox", "mu": 0.5, "keep_optimizer": False, "alpha": None},
    ),
    (
        "spafl_fashion_mnist.py:fedavg",  # whose weighting the file has set
        "--config.algorithm.name=fedprox --config.algorithm.keep_optimizer",
        "algorithm",
        {"weighting": "uniform", "keep_optimizer": True},
    ),
    (
        "fedprox_cifar10.py",
        "--config.algorithm.name=pqsu --config.algorithm.density=0.5 "
        "--config.algorithm.quantize=none",
        "algorithm",
        {"density": 0.5, "quantize": "none", "mu": None},
    ),
    (
        "flash_cifar10.py:mini",
        "--config.model.name=mlp --config.model.dtype=bfloat16",
        "model",
        {"name": "mlp", "widths": models.MODELS["mlp"].__kwdefaults__["widths"]},
    ),
    (
        "fedprox_cifar10.py",
        "--config.first_stage.name=snip --config.first_stage.density=0.5 "
        "--config.first_stage.num_rounds=2",
        "first_stage",
        {"name": "snip", "num_rounds": 2},
    ),
    (
        "flash_cifar10.py:mini",
        "--config.algorithm.name=tests.tiny:a_method --config.algorithm.strength=2 "
        "--config.first_stage.name=none",
        "algorithm",
        {"name": "tests.tiny:a_method", "strength": 2, "weighting": "examples"},
    ),
]


@pytest.mark.parametrize("file, line, field, told", SWITCHED, ids=str)
def test_a_name_on_the_command_line_takes_its_own_arguments(
    monkeypatch, file, line, field, told
):
    values = flags.FlagValues()
    config = cli.define_config(values)
    argv = ["launch.py", f"--config={ROOT}/configs/{file}", *line.split()]
    monkeypatch.setattr(sys, "argv", argv)
    values(argv)
    fields.check(rename.settle(config.value))
    assert {key: config.value[field].get(key) for key in told} == told
    if field != "model":
        objects.build_stages(config.value, network(config.value.model.name))


@pytest.mark.parametrize("line, told", FILES)
def test_a_configuration_file_is_refused(tmp_path, monkeypatch, capsys, line, told):
    (tmp_path / "mine.py").write_text(FILE.replace("{}", line, 1))
    arguments = [f"--config={tmp_path}/mine.py:arg"]
    code, err = launched(monkeypatch, capsys, arguments)
    assert code == 2 and err.startswith("error: ") and told in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments, told",
    [
        ([f"--config={MINI}", "--config.num_rounds=0"], "num_rounds=0"),
        ([f"--config={MINI}", "--config.optimizer.learning_rate=nan"], "=nan"),
        ([f"--config={MINI}", "--config.dataset=no/such.npz"], "no/such.npz"),
    ],
)
def test_a_process_ends_with_code_2_and_one_line(tmp_path, arguments, told):
    done = subprocess.run(
        [sys.executable, "launch.py", *arguments, f"--workdir={tmp_path / 'run'}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and told in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()
