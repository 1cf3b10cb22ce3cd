import json
import re

import pytest

from sparsefl_jax.report import (
    compare,
    comparison_figures,
    comparison_table,
    read_groups,
    read_run,
)
from sparsefl_jax.report.__main__ import main
from tests.report.report_test import records, write_run


def write_seed(folder, seed, gain=0.0, name="flash", density=1.0):
    """Writes a run whose accuracies exceed those of `records` by `gain`."""
    lines = list(records(stages=(2, 6), every=2))
    for record in lines:
        if record["phase"] == "eval":
            record["accuracy"] += gain
            record["models"]["aggregated"]["accuracy"] += gain
            record["models"]["aggregated"]["density"] = density
            record["gbit_cumulative"] *= 1 + gain
    write_run(folder, lines, summary=None)
    config = {"seed": seed, "seeds": 1, "algorithm": {"name": name}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def edit(path, changed):
    """Writes the records of a run again, after `changed(evals)` in place."""
    run = read_run(path)
    changed(run.evals)
    lines = [json.dumps(line) for line in ({"schema": 1}, *run.train, *run.evals)]
    (path / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def rows_of(table):
    """Returns the rows of a printed table, whose columns are two spaces apart."""
    _, *lines = table.partition("\n\n")[0].splitlines()
    assert max(map(len, lines)) <= 100
    head, *rows = [re.split(r" {2,}", line.strip()) for line in lines]
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_equal_configurations_form_groups_and_seeds_are_not_counted_twice(tmp_path):
    a0 = write_seed(tmp_path / "a_10", 0)
    a1 = write_seed(tmp_path / "a_11", 1)
    again = write_seed(tmp_path / "again", 1)
    other = write_seed(tmp_path / "other", 0, name="fedavg")
    many = [write_seed(tmp_path / "many" / f"seed_{s}", s) for s in (2, 10)]
    (tmp_path / "many" / "seed_11").mkdir()  # not begun
    groups = read_groups([a0, other, again, a0, tmp_path / "many", a1 / ".." / "a_11"])
    found = {group.name: [run.path.name for run in group.runs] for group in groups}
    assert found == {
        "a_10": ["a_10", "again"],
        "other": ["other"],
        "many": [path.name for path in many],
        "a_11": ["a_11"],
    }
    (group,) = read_groups([a0, a1])
    assert group.name == "a_10" and len(group.runs) == 2


def test_groups_with_the_same_name_are_told_apart_by_their_paths(tmp_path):
    one = write_seed(tmp_path / "x" / "run", 0)
    two = write_seed(tmp_path / "y" / "run", 0, name="fedavg")
    assert [g.name for g in read_groups([one, two])] == [str(one), str(two)]


def test_runs_without_a_configuration_stand_alone(tmp_path):
    for name in "ab":
        (write_seed(tmp_path / name, 0) / "config.json").unlink()
    assert len(read_groups([tmp_path / "a", tmp_path / "b"])) == 2


def test_the_best_round_is_chosen_by_validation_where_there_is_one(tmp_path):
    path = write_seed(tmp_path / "a", 0)
    evals = read_run(path).evals
    (row, _) = rows_of(comparison_table(compare(read_groups([path]))))
    assert row["best %"] == f"{100 * max(e['accuracy'] for e in evals):.1f}"

    def scored(evals):
        for record, score in zip(evals, (0.95, 0.5, 0.9, 0.5), strict=True):
            record["val_accuracy"] = score  # the first is of stage 0: it does not count

    edit(path, scored)
    (row, masked) = rows_of(comparison_table(compare(read_groups([path]))))
    assert row["best %"] == f"{100 * evals[2]['accuracy']:.1f}"
    assert masked["best %"] == f"{100 * evals[2]['models']['masked']['accuracy']:.1f}"


@pytest.mark.usefixtures("unplotted")
def test_main_fails_in_one_line(tmp_path, capsys):
    path = write_seed(tmp_path / "a", 0)
    file = str(path / "config.json")
    for wrong, *extra in ([str(tmp_path / "no")], [str(path), "--out", file]):
        with pytest.raises(SystemExit, match="2"):
            main([wrong, *extra])
        out, err = capsys.readouterr()
        (last,) = [x for x in err.splitlines() if not x.startswith("wrote ")]
        assert last.startswith("error: ") and wrong in last
        assert bool(out) == bool(extra)  # the table comes before the files


def test_values_that_are_not_finite_are_left_out(tmp_path):
    paths = [write_seed(tmp_path / "s0", 0), write_seed(tmp_path / "s1", 1)]

    def lost(evals):
        evals[-1]["accuracy"] = evals[-1]["models"]["aggregated"]["accuracy"] = None

    edit(paths[1], lost)
    (row, _) = rows_of(comparison_table(compare(read_groups(paths))))
    assert "±" not in row["last %"] and row["n"] == "2"
    group = read_groups(paths)[0]
    (group,) = compare([group]).groups
    band = comparison_figures.band(group, "rounds", "accuracy")
    assert band.cost.tolist() == [4, 6]  # 2 is of the first stage


DATA = dict.fromkeys(("x", "y", "x_test", "y_test", "num_classes"), 1)
APART = [  # what the second seed's summary and both configurations hold, and the label
    ({}, {}, "flash"),
    ({"data": DATA | {"y": 2}}, {}, "flash (seeds differ in data)"),
    ({"data": DATA | {"y": 2}}, {"test_split": "within"}, "flash"),
    ({"code": {"my.py": 2}, "commit": "b"}, {}, "flash (seeds differ in commit, code)"),
    ({"data": DATA | {"train": 2}}, {}, "flash"),  # another partition
]


@pytest.mark.parametrize("other, fields, label", APART)
def test_seeds_that_are_unlike_become_no_mean_in_silence(
    tmp_path, other, fields, label
):
    same = {"commit": "a", "data": DATA, "code": {"my.py": 1}}
    for seed, summary in enumerate((same, same | other, None)):  # one still runs
        path = write_seed(tmp_path / f"a/seed_{seed}", seed)
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(config | fields))
        if summary is not None:
            (path / "summary.json").write_text(json.dumps(summary))
    groups = read_groups([tmp_path / "a"])
    assert [group.label for group in compare(groups).groups] == [label]
    assert label in comparison_table(compare(groups))
