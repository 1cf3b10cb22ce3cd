"""A run's page: its words, its densities by hand, and what it leaves out."""

import json
import re

import pytest

from sparsefl_jax.report import plot_run, plots, read_run, write_page
from sparsefl_jax.report.density import density_rows
from tests.report.comparison_browser_test import in_a_browser
from tests.report.report_page_test import Page
from tests.report.report_test import drawn_lines, records, write_run

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


def test_personal_densities_and_dense_methods_are_told_apart(tmp_path):
    personal = {"accuracy": 0.5, "density": 0.6, "layer_density": 0.7}
    run = reached(tmp_path, {"personal": personal}, algorithm={"name": "fedavg"})
    rows = density_rows(run)
    assert rows[-2:] == [
        ["all parameters of personal", "-", "60.00 %"],
        ["mean over the layers of personal", "-", "70.00 %"],
    ]
    notes = words_of(run.path)
    assert "The configuration sets no density." in notes
    assert "kernels are those of the server's model" in notes


def still(stages=(2, 3), change=None):
    """Yields records of a mask that changes in one round only, or never."""
    for record in records(stages=stages):
        if record["phase"] == "train":
            moved = (record["stage"], record["round"]) == change
            record |= {"mismatch": 0.5 * moved, "density": 0.2}
            record["layer_mismatch"] = dict.fromkeys(record["layer_density"], 0.0)
            record["layer_density"] = dict.fromkeys(record["layer_density"], 0.2)
        yield record


def test_flat_plots_are_left_out(tmp_path):
    run = write_run(tmp_path, still())
    drawn = {path.stem for path in plot_run(run)}
    assert drawn == {
        "accuracy_by_round",
        "loss_by_round",
        "accuracy_by_gbit",
        "partition_by_client",
    }
    assert "Densities and masks that never change are not drawn." in words_of(run)
    write_run(run, still(change=(1, 1)))
    assert "mismatch_by_round" in {path.stem for path in plot_run(run)}


def test_losses_are_drawn_over_all_rounds(tmp_path, monkeypatch):
    lines_ = list(records(stages=(2, 2), every=2))
    for n, record in enumerate(r for r in lines_ if r["phase"] == "train"):
        record["loss"] = 4.0 - n
    found = drawn_lines(monkeypatch)
    run = read_run(write_run(tmp_path, lines_))
    plots.loss_by_round(run, tmp_path / "loss.svg")
    assert found == [
        ("training, local", [1, 2, 3, 4], [4, 3, 2, 1]),
        ("aggregated (test)", [2, 4], [1, 1]),
        ("masked (test)", [2, 4], [1, 1]),
    ]


def judged(folder, **more):
    """Writes stages of 2 and 3 rounds, the middle evaluation of which is the best."""
    accuracies = iter((0.9, 0.3, 0.6, 0.5))  # the first is one of the first stage
    found = []
    for record in records(stages=(2, 3), every=1):
        if record["phase"] == "eval":
            if (record["stage"], record["round"]) == (0, 1):
                continue
            record["accuracy"] = next(accuracies)
            record["models"] = {"global": {"accuracy": record["accuracy"], "loss": 1.0}}
            record |= {"metric": "pooled", **more}
        found.append(record)
    return write_run(folder, found)


def test_the_best_evaluation_is_marked_and_named(tmp_path, monkeypatch):
    marked = []
    monkeypatch.setattr(
        plots, "_mark_best", lambda ax, x, best: marked.append((x, best))
    )
    run = judged(tmp_path)
    plot_run(run)
    (x, best), (gbit, _) = marked
    assert x == 4 and best["accuracy"] == 0.6
    assert gbit == pytest.approx(1e3 * best["gbit_cumulative"])  # drawn in Mbit
    text = words_of(run)
    assert "Best of 3 evaluations of the last stage: 60.00 % in round 4" in text
    assert "chosen by the test set itself, so it is optimistic" in text
    assert "Accuracy of global (pooled): the server's model on the whole test" in text
    assert "best, round 4" in text


@pytest.mark.parametrize("by", ["pilot", "plan"])
def test_a_pilot_is_named(tmp_path, by):
    run = judged(tmp_path)
    fit = {"gbit": 0.4, "pflop": None, "pilot": 5, "by": by}
    (run / "config.json").write_text(json.dumps({"num_rounds": 3, "fit": fit}))
    told = "A pilot of 5 rounds estimated that fit.gbit=0.4 pays for 3 rounds."
    assert (told in words_of(run)) == (by == "pilot")


@pytest.mark.slow
@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("width", [360, 1200])
def test_in_a_browser(tmp_path, width):
    run = write_run(tmp_path / "run", records())
    plot_run(run)
    in_a_browser(write_page(run).read_text(), tmp_path, width)


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
    page = write_page(run).read_text()
    assert "1.3 times as many clients are drawn" in page
    assert "does not end with the first uplinks" in page
    cells = re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", page.partition("<h2>Devices")[2])
    words = [re.sub(r"<[^>]*>", "", cell) for cell in cells[:15]]
    assert words == [
        *("devices", "drawn", "late", "share late", "accuracy"),
        *("old", "3", "3", "100.00 %", "25.00 %"),
        *("new", "3", "0", "0.00 %", "50.00 %"),
    ]
    assert "30 min 0 s" in page and "no uplink" not in page
    tiers["new"]["dropped"] = 3
    page = write_page(write_run(tmp_path / "c", kept)).read_text()
    assert "Rounds in which no uplink came in time: 1." in page
    plain = write_run(tmp_path / "b", [train, evaluation | {"models": {"m": MASKED}}])
    assert "<h2>Devices" not in write_page(plain).read_text()
