"""`sfl.experiment`: from Python a run is what it is from the command line."""

import contextlib
import io
import json
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax import report
from sparsefl_jax.config.changes import differences
from sparsefl_jax.runs import experiment, simulate
from sparsefl_jax.runs.describe import describe
from sparsefl_jax.runs.folder import read_config
from sparsefl_jax.runs.setup import Setup
from tests.reference.by_hand import needed
from tests.tiny import write_images

MODEL = sfl.models.build("mlp", 4, (2, 3, 1), widths=(16,))


def rate(value=0.1):
    return sfl.training.make_optimizer("sgd", learning_rate=value)


def stages(density=0.5, rounds=4, optimizer=None):
    """Two stages; clients keep the state of their optimizer in the second."""
    optimizer = optimizer or rate()
    first = sfl.sensitivity(MODEL, optimizer, density=density)
    main = sfl.spdst(MODEL, optimizer, keep_optimizer=True)
    return [sfl.Stage(first, 1, 2), sfl.Stage(main, rounds, 3, batch_size=8)]


def equal(one, other):
    same = jax.tree.map(lambda a, b: np.array_equal(a, b), one, other)
    return jax.tree.leaves(same) and all(jax.tree.leaves(same))


class Ended(NamedTuple):
    """A run that has ended; `run` does it again."""

    path: Path
    data: sfl.data.federated.FederatedData
    found: sfl.Run
    said: str

    def run(self, parts, model=MODEL, data=None, **settings):
        settings = dict(workdir=self.path, eval_every=2, progress=False) | settings
        return sfl.experiment(parts, model, data or self.data, **settings)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder, said = tmp_path_factory.mktemp("ended"), io.StringIO()
    write_images(folder / "tiny.npz", 240)
    data = sfl.federate(sfl.data.load(str(folder / "tiny.npz")), "iid", 8)
    begun = Ended(folder / "run", data, None, "")
    with contextlib.redirect_stderr(said):
        found = begun.run(stages(), progress=True)
    return begun._replace(found=found, said=said.getvalue())


def test_files_change_no_result_and_an_ended_run_is_read_back(
    ended, monkeypatch, capfd
):
    assert "writing to" in ended.said and "| 5/5 [" in ended.said
    assert ended.said.splitlines()[-1] == f"report: {ended.path}/report.html"
    pure = ended.run(stages(), workdir=None)
    monkeypatch.setattr(simulate, "simulate", None)  # whatever trains now fails
    again = ended.run(stages())
    for run in (ended.found, again):
        assert equal(run[:3], pure[:3]) and run.metrics == pure.metrics
    assert capfd.readouterr() == ("", "")
    summary = report.read_summary(ended.path)
    assert [stage["name"] for stage in summary["stages"]] == ["sensitivity", "spdst"]
    assert summary["rounds"] == 5 and summary["seed"] == 0
    read = sfl.load_run(ended.path)
    assert read.config.first_stage.density == 0.5
    assert read.config.optimizer.learning_rate == 0.1
    assert equal(read.models, pure.models)


OTHER = sfl.models.build("mlp", 4, (2, 3, 1), widths=(8,))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (dict(parts=stages(0.25)), "first_stage.density is 0.5 there and 0.25 here"),
        (dict(model=OTHER), "model.parameters is 180 there and 92 here"),
        (dict(name="mine"), "algorithm.name is 'spdst' there and 'mine' here"),
        (dict(parts=stages(rounds=3)), "num_rounds=3, expected at least the 4 "),
    ],
)
def test_another_setup_in_the_same_folder_is_refused_by_what_differs(
    ended, change, told
):
    with pytest.raises(ValueError, match=told) as error:
        ended.run(**{"parts": stages()} | change)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_three_stages_run_and_more_rounds_extend_the_last(ended, tmp_path):
    def run(rounds):
        first, main = stages(rounds=rounds)
        middle = main._replace(num_rounds=2)
        return ended.run([first, middle, main], workdir=tmp_path / "run")

    run(1)
    longer = run(2)
    summary = report.read_summary(tmp_path / "run")
    assert [s["name"] for s in summary["stages"]] == ["sensitivity", "spdst", "spdst"]
    assert [s["rounds"] for s in summary["stages"]] == [1, 2, 2]
    last = longer.metrics[-1]
    assert (last["stage"], last["round"]) == (2, 2)


def test_what_only_python_holds_is_not_built_from_the_folder(ended):
    config = read_config(ended.path)
    for build in (
        lambda: sfl.load_clients(ended.path, [0]),
        lambda: experiment.run(config, ended.path, resume=True),
    ):
        with pytest.raises(ValueError, match="was made by sfl.experiment"):
            build()


def unnamed(model, optimizer, share=0.1, weighting="uniform"):
    """A method derived from another, as the examples make one."""
    base = sfl.fedavg(model, optimizer, weighting=weighting)

    def update(*args):
        return base.update(*args), share

    return base.replace(update=update)


top_share = sfl.method(unnamed)


def told(method, ended, model=MODEL):
    return describe(Setup([sfl.Stage(method, 1, 2)], model, ended.data))


def smooth(amount):
    def loss(logits, targets, weight):
        return sfl.models.cross_entropy(amount * logits, targets, weight)

    return loss


PLAIN = sfl.fedavg(MODEL, rate())
ALIKE = {  # a setting: two methods, or networks, that differ in it alone
    "optimizer.learning_rate": lambda v: (sfl.fedavg(MODEL, rate(v)), MODEL),
    "algorithm.alpha": lambda v: (sfl.spafl(MODEL, rate(), alpha=v), MODEL),
    "algorithm.share": lambda v: (top_share(MODEL, rate(), v), MODEL),
    "model.loss.amount": lambda v: (PLAIN, MODEL.with_loss(sfl.method(smooth)(v))),
}


@pytest.mark.parametrize("field", ALIKE)
def test_runs_that_differ_in_one_setting_are_never_seeds_of_one_another(field, ended):
    """A comparison takes runs of equal descriptions for seeds; so does `resume`."""
    one, same, other = (told(m, ended, n) for m, n in map(ALIKE[field], (0.5, 0.5, 1)))
    assert not differences(one, same)
    assert differences(one, other) == {field: (0.5, 1)}


@pytest.mark.parametrize(
    ("method", "model", "said"),
    [
        (unnamed(MODEL, rate()), MODEL, "algorithm .* a name, .* with @sfl.method"),
        (sfl.fedavg(MODEL, lambda r: None), MODEL, "algorithm.optimizer is a function"),
        (PLAIN, MODEL.with_loss(smooth(1)), "model.loss is a function"),
        # which may be any other
        (PLAIN, MODEL._replace(init=MODEL.init), "model is a Model without a name"),
    ],
)
def test_what_has_no_name_is_refused_where_files_are_written(
    ended, tmp_path, method, model, said
):
    with pytest.raises(ValueError, match=said) as error:
        ended.run([sfl.Stage(method, 1, 2)], model, workdir=tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", sfl.ALGORITHMS)
def test_every_method_is_described_by_its_name(name, ended):
    factory = sfl.ALGORITHMS[name]
    given = needed(factory)
    found, again = (told(factory(MODEL, rate(), **given), ended) for _ in range(2))
    assert found["algorithm"]["name"] == name
    assert found["algorithm"].keys() >= given.keys()
    assert json.dumps(again) == json.dumps(found)


def test_a_method_keeps_its_name_unless_a_function_of_it_is_replaced():
    kept = PLAIN.replace(clients=8)
    assert (kept.name, kept.settings) == ("fedavg", PLAIN.settings)
    assert PLAIN.replace(name="mine").settings == PLAIN.settings
    other = PLAIN.replace(density_after=lambda round: 1.0)
    assert (other.name, other.settings) == ("", {})
