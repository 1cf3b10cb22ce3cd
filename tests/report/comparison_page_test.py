"""The page of a comparison: what it shows, and its files."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sparsefl_jax import algorithms, report
from sparsefl_jax.report import (
    compare,
    comparison_figures,
    comparison_tables,
    read_groups,
)
from sparsefl_jax.report.__main__ import main
from tests.report.equal_cost_test import lines, write
from tests.report.report_compare_test import rows_of
from tests.report.report_page_test import EVIL, Page

FILES = {"report.html", "comparison.csv", "comparison.tex", "methods.bib", "figures"}


def write_comparison(runs, out, **about):
    return report.write_comparison(compare(read_groups(runs)), out, **about)


def study(folder, seeds=2):
    """Writes four lines of two seeds: two densities of SPDST, FedAvg, SpaFL."""
    first = {"first_stage": {"name": "sensitivity", "density": 0.1}}
    second = {"first_stage": {"name": "sensitivity", "density": 0.05}}
    for name, method, scale, gain, config in (
        ("dense", "fedavg", 10, 0.1, {}),
        ("s10", "spdst", 2, 0.05, first),
        ("s05", "spdst", 1, 0.0, second),
        ("own", "spafl", 0.1, -0.2, {}),
    ):
        for seed in range(seeds):
            points = [
                (scale * n, 0.5 + gain + 0.06 * n + 0.01 * seed) for n in range(1, 5)
            ]
            more = {"client_accuracy": {"p10": 0.3, "median": 0.5, "mean": 0.5}}
            records = list(lines(points, more=more, stage=int("first_stage" in config)))
            records[0]["assumed"] = {"up/mask": "as the paper does"}
            path = folder / name / f"seed_{seed}"
            write(path, records, seed, method, dataset="mnist", **config)
    return [folder / name for name in ("dense", "s10", "s05", "own")]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Returns the folder of a study's comparison."""
    folder = tmp_path_factory.mktemp("study")
    status = [("dense", "done"), ("late", "running"), ("bad", f"failed: {EVIL}")]
    written = write_comparison(study(folder), folder / "out", status=status)
    assert {path.relative_to(folder / "out").parts[0] for path in written} == FILES
    return folder / "out"


def test_the_page_shows_results_costs_and_differences(made):
    page = Page((made / "report.html").read_text())
    rows = [[cell.strip() for cell in row] for row in page.rows]
    (dense, s10, *_) = [r for r in rows if r[0] in ("fedavg", "spdst, density 0.1")]
    # 0.84 and 0.85: mean 84.5 %, half 12.706 * 0.5.
    assert dense[:4] == ["fedavg", "2", "84.5 ± 6.4", "84.5 ± 6.4"]
    assert dense[4:6] == ["25.0", "40.0 Gbit"] and s10[5] == "8.00 Gbit"
    # The median cost is 6 Gbit; SPDST at 0.1 takes 2 Gbit a round.
    heads, at = (rows.index(r) for r in rows if "at 6.00 Gbit %" in r), []
    heads = rows[next(heads)]
    at = [row[heads.index("at 6.00 Gbit %")] for row in rows if len(row) == len(heads)]
    assert at[1:5] == ["-", "73.5 ± 6.4", "-", "-"]
    last = [r for r in rows if r[0] == "spafl"]
    # Paired by seed the differences are the same in both: no width.
    (difference,) = [r for r in last if r[2:3] == ["-30.0 ± 0.0*"]]
    assert difference[1] == "2"
    for words in (
        "Differences from fedavg",
        "3 points: 1 done, 1 running, 1 failed",
        EVIL,
        "fedavg: Not charged: 'mask', up, in stage 0 (as the paper does).",
        "Communication-Efficient Learning of Deep Networks",
    ):
        assert words in page.text, words


def test_the_latex_table_is_whole_and_escaped(made, tmp_path):
    text = (made / "comparison.tex").read_text()
    body = text.split(r"\midrule")[1].split(r"\bottomrule")[0]
    rows = [row.split(" & ") for row in body.strip().splitlines()]
    assert len(rows) == 4 and len({len(row) for row in rows}) == 1
    assert rows[0][:4] == ["fedavg", "2", "4", "84.5 ± 6.4"]
    path = write(tmp_path / "a_b", [(1, 0.5)], method="my_method%")
    write_comparison([path], tmp_path / "out")
    assert r"my\_method\%" in (tmp_path / "out" / "comparison.tex").read_text()


def test_runs_that_go_on_or_have_no_evaluation_are_marked(tmp_path):
    running = write(tmp_path / "a", [(1, 0.5), (2, 0.6)], ended=False)
    begun = write(tmp_path / "b", [(1, None)], method="spdst", ended=False)
    ended = write(tmp_path / "c", [(1, 0.5), (4, 0.6)], method="fedpm")
    blank = write(tmp_path / "d", [(1, 0.5)], method="fedprox", ended=False)
    (blank / "metrics.jsonl").write_text('{"schema": 1}\n')
    write_comparison([running, begun, ended, blank], tmp_path / "out")
    page = Page((tmp_path / "out" / "report.html").read_text())
    names = {row[0].strip() for row in page.rows}
    assert {"fedavgso far", "spdstso far", "fedpm", "fedproxso far"} <= names
    write_comparison([begun], tmp_path / "none")
    page = Page((tmp_path / "none" / "report.html").read_text())
    assert "No run has been evaluated yet." in page.text
    assert list((tmp_path / "none" / "figures").iterdir()) == []


@pytest.mark.usefixtures("unplotted")
def test_unlike_runs_are_refused_or_marked_everywhere(tmp_path, capsys):
    one = write(tmp_path / "one", [(1, 0.5), (2, 0.6)])
    records = list(lines([(1, 0.5), (2, 0.6)], more={"metric": "clients"}))
    other = write(tmp_path / "two", records, method="spafl")
    out = tmp_path / "comparison"
    with pytest.raises(SystemExit, match="2"):
        main([str(one), str(other)])
    error = capsys.readouterr().err.splitlines()
    assert error[-1].startswith("error: ") and "--unlike" in error[-1]
    assert error[-1].index("metric=clients in all runs") < error[-1].index("--unlike")
    assert not out.exists()
    main([str(one), str(other), "--unlike"])
    printed = capsys.readouterr().out
    assert "\nspafl † (clients) " in printed
    assert "spafl †: another metric than fedavg." in printed
    text = (out / "report.html").read_text()
    tables = re.findall(r"<table.*?</table>", text, re.S)
    named = [table for table in tables if "spafl" in table]
    assert len(named) >= 6 and all("spafl †" in table for table in named)
    assert "† These runs cannot be compared as they are" in text
    for path in (out / "figures").iterdir():
        assert "spafl †" in path.read_text()
    assert "spafl † (clients) &" in (out / "comparison.tex").read_text()
    assert ",spafl †,metric,clients," in (out / "comparison.csv").read_text()


@pytest.mark.usefixtures("unplotted")
def test_a_study_folder_stands_for_its_runs_and_names_them(tmp_path, capsys):
    study(tmp_path, seeds=3)
    config = {"seed": 1, "seeds": 2}  # seed 0 is of another study
    points = {"dense": config, "s10": config, "not_begun": config}
    held = {"points": points, "labels": {"s10": "Ours at 10 %"}}
    (tmp_path / "study.json").write_text(json.dumps(held))
    main([str(tmp_path)])
    rows = capsys.readouterr().out.partition("\n\n")[0].splitlines()[2:]
    assert [re.split(" {2,}", row)[:2] for row in rows] == [
        ["fedavg", "2"],
        ["Ours at 10 %", "2"],
    ]
    text = (tmp_path / "report.html").read_text()
    assert "Ours at 10 %" in text and "spafl" not in Page(text).text
    (tmp_path / "study.json").write_text('{"points": {"not_begun": {"seed": 0')
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path)])
    assert "study.json" in capsys.readouterr().err


def test_a_runs_own_page_is_never_replaced(tmp_path):
    path = write(tmp_path / "a", [(1, 0.5)])
    with pytest.raises(ValueError, match="out=.* holds a run"):
        write_comparison([path], path)


def test_curves_are_means_over_the_rounds_that_all_seeds_have(tmp_path):
    for seed, points in enumerate(
        [[(1, 0.2), (2, 0.4), (3, 0.9)], [(3, 0.4), (5, 0.8)]]
    ):
        write(tmp_path / "a" / f"seed_{seed}", points, seed)
    (group,) = compare(read_groups([tmp_path / "a"])).groups
    band = comparison_figures.band(group, "gbit", "accuracy")
    np.testing.assert_allclose(band.cost, [2, 3.5])
    np.testing.assert_allclose(band.share, [0.3, 0.6])
    np.testing.assert_allclose(band.deviation, [0.02**0.5, 0.08**0.5])


def test_every_method_has_its_paper():
    entries = comparison_tables.entries()
    named = [name for methods in entries.values() for name in methods]
    assert sorted(named) == sorted([*algorithms.ALGORITHMS, "server_optimizer"])
    text = (Path(comparison_tables.__file__).parent / "methods.bib").read_text()
    assert text.count("\n@") + 1 == len(entries)


def test_validation_decides_where_it_disagrees_with_the_test_set(tmp_path, capsys):
    shares = {"0.05": (0.70, 0.9), "0.1": (0.831, 0.824), "1": (0.5, 0.3)}
    points = {f"rate={rate}": {"seed": 0, "seeds": 1} for rate in shares}
    (tmp_path / "study.json").write_text(json.dumps({"points": points}))
    for rate, (score, test) in shares.items():
        path = tmp_path / f"rate={rate}" / "seed_0"
        records = list(lines([(1, 0.2), (2, test)], more={"val_accuracy": score}))
        records[1]["val_accuracy"] = 0.1
        write(path, records, optimizer={"learning_rate": float(rate)})
    groups = report.sort_groups(read_groups([tmp_path]))
    assert [group.name for group in groups] == ["rate=0.1", "rate=0.05", "rate=1"]
    comparison = compare(groups)
    assert report.describe_choice(comparison, ["optimizer.learning_rate"]) == (
        "validation chooses optimizer.learning_rate=0.1: 83.1 % (test 82.4 %)"
    )
    main([str(tmp_path)])
    table = rows_of(capsys.readouterr().out)
    found = [(row["val %"], row["last %"]) for row in table]
    assert found == [("83.1", "82.4"), ("70.0", "90.0"), ("50.0", "30.0")]
    csv = pd.read_csv(tmp_path / "comparison.csv")
    assert csv["val_accuracy"].tolist() == [0.831, 0.7, 0.5]
    assert " & 83.1 & 82.4 & " in (tmp_path / "comparison.tex").read_text()
    page = (tmp_path / "report.html").read_text()
    marked = re.findall(r'class="best"[^>]*>([\d.]+)', page)
    assert marked[:3] == ["83.1", "82.4", "82.4"] and "90.0" not in marked
    assert "the row that validation chooses" in page


def test_seen_and_unseen_clients_have_columns_of_their_own(tmp_path, capsys):
    for name, shares in (("all", {}), ("apart", {"seen": 0.625, "unseen": 0.25})):
        records = list(lines([(1, 0.5)]))
        shares = {f"{clients}_accuracy": share for clients, share in shares.items()}
        records[-1]["models"]["global"] |= shares
        write(tmp_path / name / "seed_0", records)
    main([str(tmp_path / "all"), str(tmp_path / "apart")])
    found = [
        (row["seen %"], row["unseen %"]) for row in rows_of(capsys.readouterr().out)
    ]
    assert found == [("-", "-"), ("62.5", "25.0")]
    written = write_comparison([tmp_path / "all", tmp_path / "apart"], tmp_path / "out")
    page = (tmp_path / "out/report.html").read_text()
    assert written and "seen clients %" in page and "unseen clients %" in page
    write_comparison([tmp_path / "all"], tmp_path / "none")
    assert "seen clients" not in (tmp_path / "none/report.html").read_text()


FITTED = {
    "pilot": "fit.gbit=4 pays for 7 rounds, as a pilot of 20 rounds estimated.",
    "messages": "fit.gbit=4 pays for 7 rounds, by the sizes of its messages.",
    "most": "fit.gbit=4 pays for at least 7 rounds, the most that fit.most allows.",
}


@pytest.mark.parametrize("by, told", FITTED.items())
def test_the_page_names_the_data_the_clients_that_trained_and_how_rounds_were_fitted(
    tmp_path, by, told
):
    fields = {"dataset": "/x/synthetic/data", "num_clients": 0, "num_rounds": 7}
    run = write(tmp_path / "a", [(1, 0.5)], **fields, fit={"gbit": 4.0, "by": by})
    np.save(run / "partition.npy", np.array([[3, 0], [0, 0], [1, 1]]))
    write_comparison([run], tmp_path / "out", title="LEAF")
    text = " ".join((tmp_path / "out" / "report.html").read_text().split())
    assert "synthetic" in text and "2 clients" in text and told in text
