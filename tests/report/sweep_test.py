"""A study over one number: its figure, and a colour for each value."""

import json
from pathlib import Path

import pytest
from matplotlib.colors import to_rgb

from sparsefl_jax.report import compare, read_groups
from sparsefl_jax.report.comparison_figures import draw, looks, swept
from tests.report import measure_report_test
from tests.report.equal_cost_test import lines, write


@pytest.fixture
def axes(monkeypatch):
    """Returns the axes of every figure that is drawn, by the name of its file."""
    found = {}

    def keep(self, path, **_):
        (found[Path(path).stem],) = self.axes

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", keep)
    return found


def study(folder, rates, seeds=1, **config):
    """Writes runs whose last accuracies are 0.5, 0.6, ..., and 0.1 more by validation.

    A second seed is 0.02 above the first.
    """
    paths = []
    for i, rate in enumerate(rates):
        for seed in range(seeds):
            last = 0.5 + 0.1 * i + 0.02 * seed
            path = folder / f"{i}_{seed}"
            more = {"val_accuracy": last + 0.1}
            records = list(lines([(1, 0.3), (2, last)], more=more))
            optimizer = {"name": "sgd", "learning_rate": rate}
            paths.append(write(path, records, seed, optimizer=optimizer, **config))
    return read_groups(paths)


def test_accuracies_are_drawn_by_the_number(tmp_path, axes):
    groups = study(tmp_path, (1.0, 0.1, 0.3), seeds=2)
    assert swept(groups) == ("optimizer.learning_rate", [1.0, 0.1, 0.3])
    draw(compare(groups), tmp_path)
    ax = axes["sweep"]
    assert (ax.get_xlabel(), ax.get_xscale()) == ("optimizer.learning_rate", "log")
    validation, test = (bars.lines[0] for bars in ax.containers)
    assert test.get_xdata().tolist() == [0.1, 0.3, 1.0]
    assert test.get_ydata() == pytest.approx([61, 71, 51])  # means of two seeds
    assert validation.get_ydata() == pytest.approx([71, 81, 61])


def test_colours_go_from_dark_to_light_with_the_number(tmp_path):
    found = looks(study(tmp_path, (1.0, 0.1, 0.3, 3.0)))
    light = [sum(to_rgb(look["color"])) for look in found]
    assert light[1] < light[2] < light[0] < light[3]
    assert {look["linestyle"] for look in found} == {"-"}
    assert len({look["marker"] for look in found}) == 4


def test_rounds_that_a_budget_sets_differ_besides(tmp_path):
    groups = [
        *study(tmp_path / "a", (0.1,), num_rounds=30),
        *study(tmp_path / "b", (0.3, 1.0), num_rounds=20),
    ]
    assert swept(groups) == ("optimizer.learning_rate", [0.1, 0.3, 1.0])


def test_two_fields_or_two_points_are_no_sweep_and_even_steps_are_linear(
    tmp_path, axes
):
    two = study(tmp_path / "two", (0.1, 0.2))
    other = study(tmp_path / "other", (0.3,), batch_size=8)
    assert swept([*two, *other]) is None and swept(two) is None
    draw(compare(two), tmp_path)
    assert "sweep" not in axes and "accuracy_by_gbit" in axes
    draw(compare(study(tmp_path / "even", (0.1, 0.2, 0.3, 0.4))), tmp_path)
    assert axes["sweep"].get_xscale() == "linear"


def test_a_sweep_is_drawn_in_the_unit_of_the_measure(tmp_path, axes):
    paths = []
    for rate in (0.1, 0.2, 0.3):
        paths.append(
            measure_report_test.write(tmp_path / f"{rate}", "fedavg", [(1, 10 * rate)])
        )
        config = {"algorithm": {"name": "fedavg"}, "rate": rate}
        (paths[-1] / "config.json").write_text(json.dumps(config))
    draw(compare(read_groups(paths)), tmp_path)
    (_, test) = (bars.lines[0] for bars in axes["sweep"].containers)
    assert axes["sweep"].get_ylabel() == "rmse"
    assert test.get_ydata() == pytest.approx([1, 2, 3])
