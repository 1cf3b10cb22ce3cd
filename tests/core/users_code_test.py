"""A user's own code: which files it has, and that its errors keep their tracebacks."""

import sys
import zlib

import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.config import defaults
from sparsefl_jax.config.defaults import fill_in, plain
from sparsefl_jax.core import users_code
from sparsefl_jax.runs import folder, simulate
from tests.refusals import launched

FILES = {  # a method in a package, and all that it imports
    "an_own_package/__init__.py": "from . import scale",
    "an_own_package/scale.py": "import numpy, json, an_own_package.method",
    "an_own_package/method.py": """
try:
    from ..own_helper import BIAS
except ImportError:
    from own_helper import BIAS
from sparsefl_jax.algorithms import fedavg

def mine(model, optimizer):
    import own_late
    return fedavg(model, optimizer)
""",
    "own_helper.py": "BIAS = 2.0",
    "own_late.py": "",
}
UNRELATED = {"own_beside.py": "", "own_configuration.py": "import own_beside"}


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Lets modules in a folder be imported during a test."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith(("own_", "an_own_"))]:
        del sys.modules[name]


def written(path, sources):
    for name, text in sources.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)


def test_all_that_a_method_imports_counts_as_code(own):
    """Also a constant of a helper; what is installed or not imported does not count."""
    written(own, FILES | UNRELATED)
    config = defaults.default_config()
    config.algorithm.name = "an_own_package.method:mine"
    __import__("own_configuration")
    wanted = {
        str(own / name): zlib.crc32(text.encode()) for name, text in FILES.items()
    }
    late = wanted.pop(str(own / "own_late.py"))
    assert folder.own_code(plain(fill_in(config))) == wanted
    __import__("own_late")
    (own / "own_helper.py").write_text("BIAS = 3.0")
    wanted[str(own / "own_helper.py")] = zlib.crc32(b"BIAS = 3.0")
    wanted[str(own / "own_late.py")] = late
    assert folder.own_code(plain(fill_in(config))) == wanted


ERRORS = """
import jax
import jax.numpy as jnp
import sparsefl_jax as sfl

def with_update(look):
    def update(*args):
        look(args)
        return base.update(*args)

    base = sfl.fedavg(sfl.testing.tiny_model(), sfl.training.make_optimizer())
    return base.replace(update=update)

def in_jax(model, optimizer):
    return with_update(lambda args: jax.tree.map(max, {"a": 1}, {"b": 1}))

def in_our_helper(model, optimizer):
    one, other = {"a": jnp.ones(2)}, {"b": jnp.ones(2, bool)}
    return with_update(lambda args: sfl.sparsity.masks.apply(one, other))

def our_check(model, optimizer):
    return sfl.pdst(model, optimizer, density=2)

def network(num_classes, input_shape):
    return {}["the network's"]
"""
KEPT = [
    ("algorithm.name=own_errors:in_jax", "key"),
    ("algorithm.name=own_errors:in_our_helper", "key"),
    ("model.name=own_errors:network", "the network's"),
    ("algorithm.name=own_broken:mine", "while it loads"),
]
ONE_LINE = [
    ("algorithm.name=own_errors:our_check", "density=2, expected in (0, 1]"),
    ("algorithm.name=own_errors:absent", "no attribute 'absent'"),
    ("dataset=/no/such/file.npz", "/no/such/file.npz"),
]
MINI = "--config=configs/flash_mnist.py:mini,fedavg"


def told(own, monkeypatch, capsys, field):
    broken = "raise ValueError('while it loads')"
    written(own, {"own_errors.py": ERRORS, "own_broken.py": broken})
    code, err = launched(monkeypatch, capsys, [MINI, f"--config.{field}"])
    assert code
    return err


@pytest.mark.parametrize("field, said", KEPT)
def test_an_error_of_a_user_s_own_code_keeps_its_traceback(
    own, monkeypatch, capsys, field, said
):
    err = told(own, monkeypatch, capsys, field)
    assert said in err and "\nerror: " not in err
    module = field.partition("=")[2].partition(":")[0]
    assert "Traceback" in err and f'{module}.py", line ' in err


@pytest.mark.parametrize("field, said", ONE_LINE)
def test_a_check_of_ours_is_a_line(own, monkeypatch, capsys, field, said):
    err = told(own, monkeypatch, capsys, field)
    assert err.startswith("error: ") and said in err and err.count("\n") == 1


def test_an_error_in_a_run_says_where_and_what_stays(tmp_path, monkeypatch):
    """Round 2 raises; a checkpoint is written after every segment, here a round."""
    real = simulate.simulate

    def failing(*arguments):
        yield next(real(*arguments))
        raise KeyError("own")

    monkeypatch.setattr(simulate, "simulate", failing)
    x, y = np.eye(8, dtype=np.float32), np.arange(8) % 4
    data = sfl.from_arrays(x, y, num_clients=2, x_test=x, y_test=y)
    model = sfl.testing.tiny_model()
    stages = [sfl.Stage(sfl.fedavg(model, sfl.training.make_optimizer()), 3, 2)]
    settings = {"eval_every": 1, "progress": False, "checkpoint_minutes": 0.0}
    with pytest.raises(KeyError, match="own") as raised:
        sfl.experiment(stages, model, data, workdir=tmp_path / "a", **settings)
    (note,) = raised.value.__notes__
    assert "after round 1 of stage 0; its last checkpoint stays" in note


def test_causes_that_form_a_circle_have_an_end():
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__context__ = second, first
    assert not users_code.owns(first)
