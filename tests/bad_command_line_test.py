"""Bad command lines and configuration files: each is refused in one line."""

import subprocess
import sys

import pytest
from absl import flags

from sparsefl_jax import models
from sparsefl_jax.runs import cli
from sparsefl_jax.runs.config import build, fields
from tests.refusals import ROOT, launched
from tests.tiny import network

FILE = """
from sparsefl_jax.runs.config.defaults import default_config

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
    ([f"--config={MINI}", "--config.until.gbits=3"], "did you mean 'until.gbit'"),
    (
        [f"--config={MINI}", "--config.algorithm.densty=3"],
        "field 'algorithm.densty'",
    ),
    ([f"--config={MINI}", "--config.seed.x=3"], "seed.x"),
    (
        [f"--config={MINI}", "--config.fit.gbit=1", "--config.fit.by=plan"],
        "fit.by=plan is set by the run",
    ),
    ([f"--config={MINI}", "--config.budgets=abc"], "budgets=('abc',)"),
    ([f"--config={MINI}", "--config.normalize=maybe"], "maybe"),
    ([f"--config={MINI}", "--config.algorithm=5"], "--config.algorithm=5"),
    ([f"--config={MINI}", "--confg=5"], "confg"),
    ([f"--config={MINI}", "--seed=3"], "did you mean --config.seed?"),
    ([f"--config={MINI}", "--momentum=3"], "mean --config.optimizer.momentum?"),
    (
        ["--config=configs/fedrts_cifar10.py", "--config.algorithm.rule=gradient"],
        "algorithm.rule is gone: FedTiny's is algorithm.name=fedtiny",
    ),
    (["--target=v5e:2x2"], "--target has moved: python -m benchmarks.targets TARGET"),
    (["--extend_at_final"], "--extend_at_final has moved: a run with more num_rounds"),
    (["--seeds_together=yes"], "--seeds_together has moved: examples/seeds.ipynb"),
    (
        [f"--config={MINI}", "--config.seeds_together=yes"],
        "seeds_together is gone: examples/seeds.ipynb",
    ),
    (["--algorithm.density=.3"], "did you mean --config.algorithm.density?"),
    ([f"--config={MINI}", "--config.num_rounds=None"], "num_rounds=None, expected an"),
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
    ("config = )", "a_config.py, line 6"),
]


@pytest.mark.parametrize("arguments, said", LINES, ids=lambda v: str(v)[-40:])
def test_a_command_line_is_refused(monkeypatch, capsys, arguments, said):
    code, err = launched(monkeypatch, capsys, arguments)
    assert code == 2 and err.startswith("error: ") and said in err
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


@pytest.mark.parametrize("file, line, field, said", SWITCHED, ids=str)
def test_a_name_on_the_command_line_takes_its_own_arguments(
    monkeypatch, file, line, field, said
):
    values = flags.FlagValues()
    config = cli.define_config(values)
    argv = ["launch.py", f"--config={ROOT}/configs/{file}", *line.split()]
    monkeypatch.setattr(sys, "argv", argv)
    cli.parsed(argv, values)
    fields.check(config.value)
    assert {key: config.value[field].get(key) for key in said} == said
    if field != "model":
        build.build_stages(config.value, network(config.value.model.name))


@pytest.mark.parametrize("line, said", FILES)
def test_a_configuration_file_is_refused(tmp_path, monkeypatch, capsys, line, said):
    (tmp_path / "a_config.py").write_text(FILE.replace("{}", line, 1))
    arguments = [f"--config={tmp_path}/a_config.py:arg"]
    code, err = launched(monkeypatch, capsys, arguments)
    assert code == 2 and err.startswith("error: ") and said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments, said",
    [
        ([f"--config={MINI}", "--config.num_rounds=0"], "num_rounds=0"),
        ([f"--config={MINI}", "--config.optimizer.learning_rate=nan"], "=nan"),
        ([f"--config={MINI}", "--config.dataset=no/such.npz"], "no/such.npz"),
    ],
)
def test_a_process_ends_with_code_2_and_one_line(tmp_path, arguments, said):
    done = subprocess.run(
        [sys.executable, "launch.py", *arguments, f"--workdir={tmp_path / 'run'}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()
