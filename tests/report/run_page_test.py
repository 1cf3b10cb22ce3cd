"""A run's page: its words, its densities by hand, and what it leaves out."""

import json

from sparsefl_jax.report import read_run, write_page
from sparsefl_jax.report.density import density_rows
from tests.report.report_page_test import Page
from tests.report.report_test import records, write_run

SIZES = {"conv/kernel": 100, "fc1/kernel": 700, "fc2/kernel": 200}
MASKED = {"density": 0.28, "parameters": 308.0, "accuracy": 0.5, "loss": 1.0}


def words_of(run):
    """Returns the text of a run's page on one line."""
    return " ".join(Page(write_page(run).read_text()).text.split())


def reached(folder, models, **config):
    """Writes a run of one round that ends at 100 %, 20 % and 40 % of the layers."""
    layers = dict(zip(SIZES, (1.0, 0.2, 0.4), strict=True))
    train, evaluation = records(stages=(1,))
    train |= {"layer_density": layers, "density": 0.32}
    run = write_run(folder, [train, evaluation | {"models": models}])
    (run / "config.json").write_text(json.dumps(config))
    (run / "masks").mkdir()
    told = {"names": list(SIZES), "sizes": list(SIZES.values())}
    (run / "masks/layers.json").write_text(json.dumps(told))
    return read_run(run)


def test_densities_are_asked_for_and_reached(tmp_path):
    algorithm = {"name": "jmwst", "density": 0.25, "prunable": ["fc*", "!fc2/*"]}
    whole = MASKED | {"density": 0.5, "parameters": 550.0}
    models = {"masked": MASKED, "aggregated": whole}
    run = reached(tmp_path, models, algorithm=algorithm | {"prunable": ["fc*/kernel"]})
    assert density_rows(run) == [
        ["over", "entries", "reached"],
        ["conv", "100", "100.00 %"],
        ["fc1", "700", "20.00 %"],
        ["fc2", "200", "40.00 %"],
        ["all kernels", "1,000", "32.00 %"],
        ["all parameters of masked", "1,100", "28.00 %"],
        ["all parameters of aggregated", "1,100", "50.00 %"],
    ]
    notes = words_of(run.path)
    asked = "Target: algorithm.density=0.25."
    assert asked in notes and "kernels are those of masked." in notes
    assert "algorithm.prunable=fc*/kernel" in notes


def test_a_page_tells_which_devices_are_left_out(tmp_path):
    """Of six draws three were late; without a clock there is no such table."""
    train, evaluation = records(stages=(1,))
    tiers = {"old": {"drawn": 3, "dropped": 3}, "new": {"drawn": 3, "dropped": 0}}
    clocked = {"hours_cumulative": 0.5, "tiers": tiers, "dropped": 3}
    told = {"models": {"global": MASKED}, "tier_accuracy": {"old": 0.25, "new": 0.5}}
    kept = [train | clocked, evaluation | told]
    run = write_run(tmp_path / "a", kept)
    config = {"system": "iot", "deadline": {"quantile": 0.5, "over": 1.3}}
    (run / "config.json").write_text(json.dumps(config))
    page = Page(write_page(run).read_text())
    rows = [[cell.strip() for cell in row] for row in page.rows]
    assert ["old", "3", "3", "100.00 %", "25.00 %"] in rows
    assert ["new", "3", "0", "0.00 %", "50.00 %"] in rows
    plain = write_run(tmp_path / "b", [train, evaluation | {"models": {"m": MASKED}}])
    assert "<h2>Devices" not in write_page(plain).read_text()
