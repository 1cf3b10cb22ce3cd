"""A study sets its points' rounds by their budgets, one by one or side by side."""

import copy

import pytest

from sparsefl_jax.runs import fit_rounds
from sparsefl_jax.studies import fitting, points
from tests import tiny_study

SHOWN = {"unlike": False}


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Returns points with a budget, which a replaced pilot fits: seven rounds."""

    def fitted(config, build, progress):
        if config.algorithm.name == "fedpm":
            raise TypeError("no\nsuch method")
        config = copy.deepcopy(config)
        with config.ignore_type():
            config.num_rounds, config.fit.by = 7, "pilot"
        return config, "it pays for 7 rounds"

    monkeypatch.setattr(fit_rounds, "fitted", fitted)
    tiny_study.write_study(tmp_path)
    found = tiny_study.points(tmp_path, methods=("fedavg", "fedprox", "fedpm"))
    for point in found:
        point.config.fit.gbit = 1.0
    return found


class Job:
    """A pilot that ends at its second look."""

    alive = 0

    def __init__(self, workdir, name):
        self.workdir, self.name, self.looks, self.cancelled = workdir, name, 0, False
        Job.alive += 1

    def done(self):
        self.looks += 1
        if self.looks == 2:
            Job.alive -= 1
            if self.name != "lost" and not self.cancelled:
                fitting.fit_point(self.workdir, self.name)
        return self.looks > 1

    def cancel(self):
        self.cancelled = True

    def fate(self):
        return "was shot"


@pytest.mark.parametrize("at_once", [1, 2])
def test_pilots_run_side_by_side(study, tmp_path, at_once):
    begun, said, out = [], [], tmp_path / "out"

    def start(names, fit):
        assert fit and Job.alive + len(names) <= at_once
        begun.append(names)
        return [Job(out, name) for name in names]

    found = fitting.fitted(study[:2], out, SHOWN, said.append, start, at_once)
    together = [["fedavg", "fedprox"]]
    assert begun == (together if at_once == 2 else [["fedavg"], ["fedprox"]])
    assert [point.config.num_rounds for point in found] == [7, 7]
    assert said == [f"{p.name}: it pays for 7 rounds" for p in study[:2]]
    kept, _ = points.read(out)
    assert [(p.config.num_rounds, p.config.fit.by) for p in kept] == [(7, "pilot")] * 2
    assert list((out / "fits").iterdir()) == []
    # Started again nothing is measured.
    again = fitting.fitted(study[:2], out, SHOWN, said.append, None)
    assert [point.config.num_rounds for point in again] == [7, 7] and len(said) == 2


def test_a_schedule_follows_the_fitted_rounds_beside_other_pilots(study, tmp_path):
    """A file keeps no reference, so such a point is fitted in this process."""
    point = study[1]._replace(name="follows", config=copy.deepcopy(study[1].config))
    with point.config.unlocked(), point.config.ignore_type():
        point.config.algorithm.mu = point.config.get_oneway_ref("num_rounds")
    out = tmp_path / "out"

    def start(names, fit):
        assert names == ["fedavg"]
        return [Job(out, name) for name in names]

    found = fitting.fitted([point, study[0]], out, SHOWN, print, start, 2)
    assert [p.config.num_rounds for p in found] == [7, 7]
    assert found[0].config.algorithm.mu == 7
    kept, _ = points.read(out)
    assert kept[0].config.algorithm.mu == 7


def test_a_pilot_that_fails_is_named_and_the_others_end(study, tmp_path):
    jobs, out = [], tmp_path / "out"

    def start(names, fit):
        jobs.extend(Job(out, name) for name in names)
        return jobs[-len(names) :]

    with pytest.raises(ValueError, match="point 'fedpm': no such method"):
        fitting.fitted(study[::-1], out, SHOWN, print, start, 2)
    assert [job.name for job in jobs] == ["fedpm", "fedprox"]
    assert jobs[1].cancelled and jobs[1].looks > 1
    lost = study[0]._replace(name="lost")
    with pytest.raises(ValueError, match="point 'lost': its pilot was shot"):
        fitting.fitted([lost], out, SHOWN, print, start, 2)


def test_one_by_one_the_rest_is_kept_when_a_pilot_fails(study, tmp_path):
    said = []
    with pytest.raises(ValueError, match="point 'fedpm': TypeError: no such method"):
        fitting.fitted(study, tmp_path / "out", SHOWN, said.append)
    assert said[0] == "fitting point 1 of 3: fedavg"
    kept, _ = points.read(tmp_path / "out")
    assert [p.config.num_rounds for p in kept] == [7, 7, 1]
