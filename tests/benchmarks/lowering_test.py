"""The benchmark that writes the table of lowerings, with fake times."""

import json
import shutil

import jax
import pytest

from benchmarks import lowering
from benchmarks.lowering import find_layers
from sparsefl_jax.models.convolution import Layer

pytestmark = pytest.mark.slow

LAYER = Layer(2, 6, 6, 3, 4, 3, pad=1)
PATCHES = "concatenate[dimension=3]"
HELD = "64 12 12 20 50 5 1 0"


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Sets a copy of the table, and a single layer to time."""
    path = tmp_path / "lowerings.json"
    shutil.copy(lowering.TABLE, path)
    monkeypatch.setattr(lowering, "TABLE", path)
    monkeypatch.setattr(lowering, "find_layers", lambda _: [LAYER, LAYER])
    return path


def test_the_layers_of_a_network_are_those_of_its_paper():
    """He et al., Table 1, for images of 32x32: eight layers of 3x3 that differ."""
    first = Layer(32, 32, 32, 3, 64, 3, pad=1)
    stages = [Layer(32, 32, 32, 64, 64, 3, pad=1)]
    for side, inputs in ((32, 64), (16, 128), (8, 256)):
        half = Layer(32, side // 2, side // 2, 2 * inputs, 2 * inputs, 3, pad=1)
        stages += [Layer(32, side, side, inputs, 2 * inputs, 3, 2, 1), half]
    assert find_layers("resnet18") == [first, *stages]


def call(monkeypatch, run, write=True):
    """Runs the benchmark; `run(text of the program)` gives seconds or raises."""

    def seconds(program, shapes, *_):
        return run(str(jax.make_jaxpr(program)(*map(jax.numpy.ones, shapes))))

    monkeypatch.setattr(lowering, "seconds_per_step", seconds)
    assert len(list(lowering.run(("ic",), write=write))) == 2


def patches_first(text):
    return 1.0 if PATCHES in text else 2.0


def test_the_fastest_is_kept_and_other_layers_stay(table, monkeypatch):
    before = json.loads(table.read_text())
    call(monkeypatch, patches_first, write=False)
    assert json.loads(table.read_text()) == before
    call(monkeypatch, patches_first)
    layers = json.loads(table.read_text())["cpu"]["layers"]
    key = lowering.key_of(LAYER)
    kept = layers.pop(key)
    assert (kept[0], kept[2]) == ("patches", "patches")
    assert layers == before["cpu"]["layers"] and HELD in layers
    assert f'"{key}": {json.dumps(kept)}' in table.read_text()  # on one line
