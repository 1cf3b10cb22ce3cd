"""Command lines and configuration files: what is named on them, and what is refused."""

import pytest

from sparsefl_jax import launch, models
from sparsefl_jax.config import build
from sparsefl_jax.config.defaults import freeze
from tests.refusals import ROOT, given, launched
from tests.tiny import network

FILE = """
from sparsefl_jax.config import default_config

def get_config(arg):
    config = default_config()
    {}
    return config
"""
REFUSED = [  # a file's name, a line in it, and what is said of it
    ("a", "config.cohort_size = 'ten'", "cohort_size='ten', expected an integer"),
    ("no_such", "", "no_such.py: there is no such"),
    ("a", "config.num_clinets = 3", "did you mean 'num_clients'"),
    ("a", "raise ValueError('first\\nsecond')", "first second"),
    ("a", "config = )", "a.py, line 6"),
]


@pytest.mark.parametrize("name, line, said", REFUSED)
def test_a_file_is_refused(tmp_path, monkeypatch, capsys, name, line, said):
    (tmp_path / "a.py").write_text(FILE.replace("{}", line, 1))
    code, err = launched(monkeypatch, capsys, [f"--config={tmp_path}/{name}.py:arg"])
    assert code == 2 and err.startswith("error: ") and said in err
    assert err.count("\n") == 1 and "\\n" not in err


MINI = "flash_cifar10.py:mini"
METHOD, STAGE = "--config.algorithm.name", "--config.first_stage.name"
PLAIN = f"{MINI} {METHOD}=fedavg {STAGE}=none"
OWN = f"{METHOD}=tests.tiny:a_method --config.algorithm.strength=2 {STAGE}=none"
JMWST = f"{METHOD}=jmwst {STAGE}=sensitivity --config.density=0.05"
WIDTHS = models.MODELS["mlp"].__kwdefaults__["widths"]
PRUNABLE = ("conv[23]/kernel", "fc1/kernel")
NAMED = [  # a command line, a section, and what it must hold
    (f"{PLAIN} --config.model.name=mlp", "model", {"name": "mlp", "widths": WIDTHS}),
    (f"{MINI} {OWN}", "algorithm", {"strength": 2, "weighting": "examples"}),
    (f"{MINI} {JMWST}", "first_stage", {"density": 0.05}),
    (f"{MINI} {JMWST}", "algorithm", {"density": 0.05, "prunable": PRUNABLE}),
    (PLAIN, "algorithm", {"density": None}),
]


@pytest.mark.parametrize("line, section, held", NAMED, ids=str)
def test_what_is_named_has_arguments_of_its_own(monkeypatch, line, section, held):
    config = freeze(given(monkeypatch, *f"--config={ROOT}/configs/{line}".split()))
    build.build_stages(config, network(config.model["name"]))
    found = getattr(config, section)
    assert {name: found.get(name) for name in held} == held


@pytest.mark.parametrize("section", ["first_stage", "schedule"])
def test_a_section_that_may_be_empty_offers_none(monkeypatch, section):
    line = f"--config={ROOT}/configs/{MINI} --config.{section}.name=None"
    with pytest.raises(ValueError, match="did you mean 'none'.*, none$"):
        given(monkeypatch, *line.split())


def test_a_density_that_only_the_old_method_read_goes_with_it(monkeypatch):
    line = f"--config={ROOT}/configs/{PLAIN}"
    assert freeze(given(monkeypatch, *line.split())).density is None
    with pytest.raises(ValueError, match="density=0.05 has no effect here: 'fed"):
        freeze(given(monkeypatch, *f"{line} --config.density=0.05".split()))


DROPPED = [  # a change of configs/own_npz.py, and what it is said to leave out
    ("partition.name=natural", ""),  # and not the alpha of another partition
    (
        f"algorithm.name=fedavg {STAGE}=none",
        "the file had set density=0.1, left out here\n",
    ),
]


@pytest.mark.parametrize("change, said", DROPPED)
def test_what_a_new_name_leaves_out_is_told(monkeypatch, capsys, change, said):
    line = f"--config={ROOT}/configs/own_npz.py --config.{change}"
    given(monkeypatch, *line.split())
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    "flags, verb",
    [("dry_run resume", "dry_run"), ("sweep config workdir distributed", "sweep")],
)
def test_flags_that_would_be_ignored_are_refused(flags, verb):
    *fine, unread = flags.split()
    launch.check_flags(fine)
    with pytest.raises(ValueError, match=f"--{unread} is not read beside --{verb}"):
        launch.check_flags(flags.split())
