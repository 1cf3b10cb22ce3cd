"""Folders of older formats can still be reported, loaded and exported.

Those in `kept/` were written at commit 831b8fe, the last of checkpoints of format 1,
from `tiny.npz` beside them, with two rounds: `spdst` after a first stage, `spafl` with
personal models, `fedavg` with two seeds. Their plots and pages are left out.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.report.__main__ import main as report
from sparsefl_jax.runs import checkpoint, experiment, run_directory

ROOT = Path(__file__).parent.parent
RUNS = ("spdst", "spafl", "fedavg/seed_0", "fedavg/seed_1")


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Returns `kept(name)`, a copy of a kept folder."""
    monkeypatch.chdir(ROOT)  # where their configurations name the data from

    def unpack(name):
        top = name.partition("/")[0]
        shutil.unpack_archive(ROOT / f"tests/kept/{top}.zip", tmp_path / top)
        return tmp_path / name

    return unpack


SLOW = [pytest.param(n, marks=pytest.mark.slow) for n in ("spafl", "fedavg")]


@pytest.mark.parametrize("name", ["spdst", *SLOW])
def test_reports(kept, capsys, name):
    run = kept(name)
    assert report([str(run)]) == 0
    said = capsys.readouterr()
    final = json.loads((run / "summary.json").read_text())["accuracy"]
    (accuracy,) = final.values()
    assert f" {100 * accuracy['final']:.1f} " in said.out
    pages = list(run.rglob("report.html"))
    assert len(pages) == (3 if name == "fedavg" else 1)
    assert all("What was charged" in page.read_text() for page in pages)


@pytest.mark.parametrize("name", RUNS)
def test_loads(kept, name):
    run = kept(name)
    found = sfl.load_run(run)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(x)["loss"] for x in lines if '"phase": "train"' in x]
    assert found.metrics["train"]["loss"].tolist() == losses
    summary = json.loads((run / "summary.json").read_text())
    assert found.best.accuracy == summary["best"]["accuracy"]
    (model,) = found.models.values()
    alive = np.mean(model.mask["fc1"]["kernel"])
    last = json.loads(lines[-2])["layer_density"]["fc1/kernel"]
    assert name == "spafl" or alive == pytest.approx(last)
    about = json.loads(next(run.glob("checkpoint/*/about/metadata")).read_text())
    assert about["format"] == 1 and about["checksums"].keys() > {"models"}


@pytest.mark.parametrize(
    ("name", "how"),
    [("spdst", {}), ("fedavg/seed_1", {"best": True})],
)
def test_exports(kept, name, how):
    pytest.importorskip("safetensors", reason="needs the extra [export]")
    run = kept(name)
    path, _ = sfl.export_run(run, **how)
    model = sfl.load_sparse(path).sparse
    found = sfl.load_run(run)
    (whole,) = (found.best.models if how else found.models).values()
    np.testing.assert_array_equal(
        model.params["fc1"]["kernel"], whole.params["fc1"]["kernel"]
    )


@pytest.mark.parametrize("name", RUNS)
def test_going_on_is_refused_with_the_commit_that_can(kept, name):
    run = kept(name)
    (run / "report.html").write_text("")
    config = run_directory.read_config(run)
    told = experiment.run(config, run, resume=True, progress=False)
    assert told == json.loads((run / "summary.json").read_text())  # it has ended
    line = "checkpoint has format 1, expected 2, to go on: commit 831b8fe can finish it"
    for change in ("extended", "stopped"):
        if change == "stopped":
            (run / "summary.json").unlink()
        else:
            config.num_rounds = 4
        before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
        with pytest.raises(ValueError, match=line) as error:
            experiment.run(config, run, resume=True, progress=False)
        assert "\n" not in str(error.value)
        assert before == {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}


def test_a_later_format_is_refused(kept, monkeypatch):
    run = kept("spdst")
    monkeypatch.setattr(checkpoint, "FORMAT", 0)
    with pytest.raises(ValueError, match="has format 1, expected at most 0: a later"):
        sfl.load_run(run)
