"""`sfl.experiment`: from Python a run is what it is from the command line."""

import json

import jax
import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax import report
from sparsefl_jax.runs import experiment, in_python, loop
from tests.tiny import ctrl_c, tiny_config, write_images


@pytest.fixture
def data(tmp_path):
    write_images(tmp_path / "tiny.npz", 240)
    return sfl.federate(sfl.data.load(str(tmp_path / "tiny.npz")), "iid", 8)


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


def test_files_change_no_result_and_an_ended_run_is_read_back(
    data, tmp_path, monkeypatch, capfd
):
    settings = dict(eval_every=2, seed=3)
    pure = sfl.experiment(stages(), MODEL, data, progress=False, **settings)
    assert capfd.readouterr() == ("", "")
    folder = tmp_path / "run"
    kept = sfl.experiment(stages(), MODEL, data, workdir=folder, **settings)
    said = capfd.readouterr().err
    assert "writing to" in said and "round 5/5" in said
    monkeypatch.setattr(loop, "go_on", None)  # whatever trains now fails
    again = sfl.experiment(stages(), MODEL, data, workdir=folder, **settings)
    for run in (kept, again):
        assert equal(run[:3], pure[:3]) and run.metrics == pure.metrics
    assert {p.name for p in folder.iterdir()} >= {
        *("metrics.jsonl", "summary.json", "config.json", "checkpoint", "masks"),
        *("report.html", "plots", "partition.npy", "timing.jsonl"),
    }
    summary = json.loads((folder / "summary.json").read_text())
    assert [stage["name"] for stage in summary["stages"]] == ["sensitivity", "spdst"]
    assert summary["rounds"] == 5 and summary["seed"] == 3
    read = sfl.load_run(folder)
    assert read.config.first_stage.density == 0.5
    assert read.config.algorithm.optimizer.learning_rate == 0.1
    assert equal(read.models, pure.models)


def test_a_stopped_run_goes_on_with_the_same_call(data, tmp_path, monkeypatch):
    def run(folder):
        return sfl.experiment(
            stages(), MODEL, data, workdir=folder, eval_every=1, progress=False
        )

    send, written = ctrl_c(monkeypatch), experiment.recording.recording

    def stopping(*args):
        from contextlib import contextmanager

        @contextmanager
        def opened():
            with written(*args) as recorder:

                def record(segment):
                    if segment.snapshot.stage == 1 and segment.snapshot.round == 2:
                        send()
                    return recorder.record(segment)

                yield recorder._replace(record=record)

        return opened()

    with monkeypatch.context() as patch:
        patch.setattr(experiment.recording, "recording", stopping)
        with pytest.raises(experiment.interrupt.StoppedError):
            run(tmp_path / "stopped")
    assert not (tmp_path / "stopped" / "summary.json").exists()
    stopped = run(tmp_path / "stopped")
    whole = run(tmp_path / "whole")
    assert equal(stopped[:3], whole[:3]) and stopped.metrics == whole.metrics


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Returns a function that runs into the folder of a run that has ended."""
    folder = tmp_path_factory.mktemp("ended")
    write_images(folder / "tiny.npz", 240)
    data = sfl.federate(sfl.data.load(str(folder / "tiny.npz")), "iid", 8)

    def run(parts, model=MODEL, data=data, **settings):
        where = dict(workdir=folder / "run", progress=False)
        return sfl.experiment(parts, model, data, **where, **settings)

    run(stages())
    return run


class Wider(sfl.models.base.nn.Module):
    """Another network."""

    @sfl.models.base.nn.compact
    def __call__(self, x):
        """Returns logits."""
        return sfl.models.base.nn.Dense(4)(x.reshape(len(x), -1))


OTHER = sfl.Model.from_flax(Wider(), jax.ShapeDtypeStruct((1, 2, 3, 1), np.float32))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (dict(parts=stages(0.25)), "first_stage.density is 0.5 there and 0.25 here"),
        (
            dict(parts=stages(optimizer=rate(0.2))),
            "algorithm.optimizer.learning_rate is 0.1 there and 0.2 here",
        ),
        (dict(seed=1), "seed is 0 there and 1 here"),
        (dict(metric="pooled"), "metric is 'auto' there and 'pooled' here"),
        (dict(model=OTHER), "model.fingerprint is "),
        (dict(name="mine"), "algorithm.name is 'spdst' there and 'mine' here"),
        (dict(parts=stages()[1:]), "first_stage"),
        (dict(parts=stages(rounds=3)), "num_rounds=3, expected at least the 4 "),
    ],
)
def test_another_setup_in_the_same_folder_is_refused_by_what_differs(
    ended, change, told
):
    with pytest.raises(ValueError, match=told) as error:
        ended(**{"parts": stages()} | change)
    assert "\n" not in str(error.value)


def test_other_data_are_refused_for_more_rounds(ended, data):
    changed = data._replace(x=data.x + 1)
    with pytest.raises(ValueError, match="the data set is not that of the checkpoint"):
        ended(stages(rounds=5), data=changed)


def test_three_stages_are_described_and_run_and_more_rounds_extend_the_last(
    data, tmp_path
):
    def run(rounds):
        first, main = stages(rounds=rounds)
        middle = main._replace(num_rounds=2)
        return sfl.experiment(
            [first, middle, main], MODEL, data, workdir=tmp_path / "run", progress=False
        )

    run(1)
    longer = run(2)
    summary = report.read_summary(tmp_path / "run")
    assert [s["name"] for s in summary["stages"]] == ["sensitivity", "spdst", "spdst"]
    assert [s["rounds"] for s in summary["stages"]] == [1, 2, 2]
    last = longer.metrics[-1]
    assert (last["stage"], last["round"]) == (2, 2)


def test_seeds_have_data_of_their_own_and_a_page_beside_a_command_line_run(tmp_path):
    config = tiny_config(tmp_path)
    config.partition = {"name": "dirichlet", "alpha": 0.5}
    config.seeds, config.eval_every = 2, 4
    experiment.run(config, tmp_path / "command", progress=False)
    dataset = sfl.data.load(config.dataset)

    def data(seed):
        return sfl.federate(dataset, "dirichlet", 8, alpha=0.5, seed=seed)

    found = sfl.experiment(
        stages(),
        MODEL,
        data,
        workdir=tmp_path / "python",
        seeds=2,
        eval_every=4,
        progress=False,
    )
    assert [len(run.metrics) for run in found] == [7, 7]
    assert found[0].metrics != found[1].metrics
    assert (tmp_path / "python" / "report.html").exists()
    both = report.read_summary(tmp_path / "python")
    assert both["seeds"] == [0, 1]
    # Of the same seed both ways have the same data and partition, so they compare.
    folders = [tmp_path / "command", tmp_path / "python"]
    page = report.write_comparison(folders, tmp_path / "both")
    assert page


def test_what_only_python_holds_is_not_built_from_the_folder(ended, capsys):
    from sparsefl_jax.runs import cli

    del cli
    folder = next(c.cell_contents for c in ended.__closure__ if c.cell_contents)
    with pytest.raises(ValueError, match="made by sfl.experiment"):
        sfl.load_clients(folder, [0])


def test_the_description_tells_the_arguments_of_methods_and_the_derived_one():
    def top(model, optimizer, share=0.1):
        base = sfl.fedavg(model, optimizer, weighting="uniform")

        def update(*args):
            return base.update(*args), share

        return base._replace(update=update)

    told = in_python.describe.__globals__["_method"](top(MODEL, rate()))
    assert told["share"] == 0.1 and told["optimizer"]["factory"] == "sgd"
