"""Names of classes and clients: in the plan, the summary, the page and the plot."""

import json

import numpy as np

import sparsefl_jax as sfl
from sparsefl_jax.report import read_run

WARDS = {"ward 3": [0, 1, 2, 4], "ward 1": [3, 5]}
LABELS = np.array(["healthy", "ill", "healthy", "healthy", "ill", "healthy"])


def test_names_stay_from_the_plan_to_the_page(tmp_path, capsys, drawn):
    x = np.eye(6, dtype=np.float32)
    data = sfl.from_arrays(x, LABELS, x_test=x, y_test=LABELS, partition=WARDS)
    model = sfl.models.build("mlp", 2, (6,), widths=(2,))
    stages = [sfl.Stage(sfl.fedavg(model, sfl.training.make_optimizer()), 1, 2)]
    sfl.experiment(stages, model, data, workdir=tmp_path / "run")
    plan = capsys.readouterr().err
    assert "6 test samples: ward 3 (4), ward 1 (2)\n" in plan
    assert "classes   2: healthy (4), ill (2)\n" in plan
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    names = {"classes": ["healthy", "ill"], "clients": ["ward 3", "ward 1"]}
    assert summary["names"] == names
    page = (tmp_path / "run/report.html").read_text()
    assert "ward 3 (4), ward 1 (2)" in page and "healthy (4), ill (2)" in page
    plot = (tmp_path / "run/plots/partition_by_client.svg").read_text()
    assert all(name in plot for name in ("ward 1", "healthy"))
    assert read_run(tmp_path / "run").partition.tolist() == [[2, 2], [2, 0]]
