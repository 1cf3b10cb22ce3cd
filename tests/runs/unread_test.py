"""Settings without effect are refused; another method drops old arguments."""

import pytest

from sparsefl_jax.runs import cli, experiment
from sparsefl_jax.runs.config import build
from sparsefl_jax.runs.config.defaults import freeze
from tests.refusals import ROOT, change, given, refused
from tests.tiny import network, tiny_config

MINI = "configs/flash_cifar10.py:mini"
SPAFL = {"name": "spafl", "alpha": 0.1}

# Settings of a valid configuration that have no effect, and the error.
UNREAD = [
    ({"density": 0.05}, "density=0.05 has no effect here: first_stage.density is"),
    (
        {"density": 0.05, "first_stage": {}, "algorithm": {"name": "fedavg"}},
        "density=0.05 has no effect here: 'fedavg' takes none",
    ),
    (
        {"server_optimizer.name": "adam", "algorithm": SPAFL, "first_stage": {}},
        "server_optimizer.name='adam' has no effect here",
    ),
    ({"init_what": "mask"}, "init_what='mask' has no effect here: it goes with i"),
    (
        {"first_stage": {"name": "snip", "epochs": 3, "density": 0.5}},
        "first_stage.epochs=3 has no effect here: 'snip' takes the bat",
    ),
    (
        {"system": "mobile", "deadline": {"seconds": 9.0, "quantile": 0.5}},
        "deadline.quantile=0.5 has no effect here: deadline.seconds is 9.0",
    ),
    (
        {"budgets": ((0.5, 0.5), (1.0, 0.5)), "cohort_size": 2},
        "budgets have no effect here, expected none, or a method that reads",
    ),
]


@pytest.mark.parametrize("values, told", UNREAD, ids=lambda v: str(v)[:60])
def test_what_nothing_reads_is_refused(tmp_path, values, told):
    config = tiny_config(tmp_path)
    change(config, values)
    refused(lambda: experiment.build(config), told)


def test_what_a_first_stage_reads_is_its_own(tmp_path):
    config = tiny_config(tmp_path)
    own = {"name": "snip", "density": 0.5, "drop_last": True, "num_rounds": 1}
    config.epochs, config.first_stage = 3, own  # the main stage reads the epochs
    (first, main) = experiment.build(config).setup.stages
    assert (first.drop_last, main.drop_last) == (True, False)
    config.first_stage = {"name": "fedavg", "epochs": 3}
    experiment.build(config)


def test_a_tier_without_a_client_is_refused(tmp_path):
    config = tiny_config(tmp_path)
    config.budgets = ((0.5, 0.01), (1.0, 0.99))
    refused(lambda: build.build_budgets(freeze(config)), "but none has 0.5")
    config.num_clients = 0  # as with natural users
    refused(
        lambda: build.build_budgets(freeze(config)),
        "num_clients=0, expected their number",
    )


def built(monkeypatch, line: str):
    """Returns the configuration of a command line, whose stages can be built."""
    config = given(monkeypatch, *f"--config={ROOT}/configs/{line}".split())
    config = freeze(config)
    build.build_stages(freeze(config), network(config.model["name"]))
    return config


METHOD, STAGE = "--config.algorithm.name", "--config.first_stage.name"
KEPT = [  # a command line, the density of both stages, another field of the method
    (
        f"flash_cifar10.py:mini {METHOD}=jmwst {STAGE}=sensitivity "
        "--config.density=0.05",
        (0.05, 0.05),
        ("prunable", ("conv[23]/kernel", "fc1/kernel")),
    ),
    (  # `rounds` still follows num_rounds
        f"fedsparsify_fashion_mnist.py {METHOD}=fedsparsify_local "
        "--config.num_rounds=7 --config.density=0.5",
        (None, 0.5),
        ("rounds", 7),
    ),
]


@pytest.mark.parametrize("line, densities, told", KEPT, ids=str)
def test_a_renamed_method_takes_density_along(monkeypatch, line, densities, told):
    config = built(monkeypatch, line)
    both = config.first_stage.get("density"), config.algorithm.get("density")
    assert both == densities
    assert config.algorithm[told[0]] == told[1]


def test_a_density_that_only_the_old_method_read_goes_with_it(monkeypatch):
    line = f"flash_cifar10.py:mini {METHOD}=fedavg {STAGE}=none"
    assert built(monkeypatch, line).density is None
    with pytest.raises(ValueError, match="density=0.05 has no effect here: 'fed"):
        built(monkeypatch, f"{line} --config.density=0.05")


@pytest.mark.parametrize(
    "flags, verb",
    [
        ("dry_run resume", "dry_run"),
        ("sweep config workdir distributed", "sweep"),
    ],
)
def test_flags_that_would_be_ignored_are_refused(flags, verb):
    *fine, unread = flags.split()
    cli.check_flags(fine)
    with pytest.raises(ValueError, match=f"--{unread} is not read beside --{verb}"):
        cli.check_flags(flags.split())
