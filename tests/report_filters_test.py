import json

import numpy as np
import pytest
from report_test import records, svg_size, write_run

from sparsefl_jax.report import (
    lines,
    maps,
    masks,
    plot_run,
    plots,
    read_run,
    write_page,
)

NAMES = ["conv1/kernel", "conv2/kernel", "fc1/kernel", "fc2/kernel"]
SIZES = [20, 50, 37, 10]  # 117: no multiple of 8, and no layer but the first at a byte
PLOTS = ["filter_activity", "client_filters"]


def draw(num_clients, density, seed=0):
    """Draws active filters, bool [N, F], with a similar share in each layer."""
    rng = np.random.default_rng(seed)
    common = rng.random((1, sum(SIZES))) < density
    return common ^ (rng.random((num_clients, sum(SIZES))) < 0.05)


def write_filters(run, rounds, names=NAMES, sizes=SIZES):
    folder = run / "masks"
    folder.mkdir(exist_ok=True)
    told = {"names": list(names), "sizes": list(sizes)}
    (folder / "filters.json").write_text(json.dumps(told))
    for (stage, done), active in rounds.items():
        path = folder / f"filters_{stage}_{done:06d}.npy"
        np.save(path, np.packbits(active, axis=1))
    return folder


def with_thresholds(lines, names=NAMES):
    for line in lines:
        if line["phase"] == "train":
            for i, name in enumerate(names):
                told = line.setdefault("server", {})
                told[f"threshold_mean/{name}"] = 0.001 * line["round"] * (i + 1)
                told[f"threshold_max/{name}"] = 0.004 * line["round"] * (i + 1)
        yield line


@pytest.fixture
def spied(monkeypatch):
    """Records the arrays that are drawn as cells and lines."""
    seen = {"cells": [], "lines": []}
    cells, line = maps._filters, lines.draw_line

    def on_cells(ax, shares, *colors):
        seen["cells"].append(np.array(shares, float))
        return cells(ax, shares, *colors)

    def on_line(ax, values, *rest):
        seen["lines"].append((values.index.tolist(), values.tolist(), rest[0]))
        line(ax, values, *rest)

    monkeypatch.setattr(maps, "_filters", on_cells)
    monkeypatch.setattr(lines, "draw_line", on_line)
    return seen


def test_read_filters_gives_back_the_bits_in_order(tmp_path):
    run = write_run(tmp_path, records())
    assert masks.read_masks(read_run(run), "filters") is None
    rounds = {(1, 4): draw(7, 0.3), (0, 12): draw(7, 0.5, 1)}
    rounds[1, 1_000_000] = draw(1, 1)
    folder = write_filters(run, rounds)
    kept = masks.read_masks(read_run(run), "filters")
    assert [s[:2] for s in kept.filters] == sorted(rounds)
    edges = np.cumsum([0, *SIZES])
    for snapshot in kept.filters:
        active = kept.active(snapshot)
        assert list(active) == NAMES
        for name, a, b in zip(NAMES, edges, edges[1:], strict=False):
            np.testing.assert_array_equal(active[name], rounds[snapshot[:2]][:, a:b])
    np.save(folder / "filters_1_000004.npy", np.zeros((7, 14), np.uint8))
    with pytest.raises(ValueError, match="filters_1_000004.npy: .* 15 bytes a mask"):
        masks.read_masks(read_run(run), "filters")


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_maps_of_clients_with_models_of_their_own(tmp_path, spied):
    run = write_run(tmp_path, with_thresholds(records(stages=(3, 8))))
    rounds = {(0, 3): draw(1, 0.9)}
    rounds |= {(1, r): draw(9, 0.8 - 0.08 * r, seed=r) for r in range(1, 9)}
    rounds |= {(2, 1): draw(9, 0.5)}  # ahead of the metrics
    write_filters(run, rounds)
    drawn = plot_run(run)
    assert [path.stem for path in drawn[-2:]] == PLOTS
    assert run / "plots/thresholds_by_round.svg" in drawn
    assert all(min(svg_size(path)) >= 180 for path in drawn[-2:])
    activity, patterns = spied["cells"][:4], spied["cells"][4:]
    # filters x rounds: the share of the clients that keep a filter
    assert [v.shape for v in activity] == [(size, 9) for size in SIZES]
    np.testing.assert_allclose(activity[1][:, 0], rounds[0, 3][0, 20:70])
    np.testing.assert_allclose(activity[1][:, 5], rounds[1, 5][:, 20:70].mean(0))
    # clients x filters at three rounds of the last stage, first and last among them
    assert [v.shape for v in patterns] == 3 * [(9, size) for size in SIZES]
    np.testing.assert_array_equal(patterns[0], rounds[1, 1][:, :20])
    np.testing.assert_array_equal(patterns[-1], rounds[1, 8][:, 107:])
    page = write_page(run).read_text()
    assert page.count("<figure>") == len(drawn) and "each client keeps" in page


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_the_server_alone_and_many_layers(tmp_path, spied):
    run = write_run(tmp_path, with_thresholds(records(stages=(4,)), range(21)))
    sizes = [64, 7] * 10 + [5]
    rng = np.random.default_rng(0)
    rounds = {(0, r): rng.random((1, sum(sizes))) < 0.5 for r in (2, 4)}
    write_filters(run, rounds, [f"layer{i}/kernel" for i in range(21)], sizes)
    assert [p.stem for p in maps.plot_filters(read_run(run), tmp_path)] == PLOTS[:1]
    assert [v.shape for v in spied["cells"]] == [(size, 2) for size in sizes]
    plots.thresholds_by_round(read_run(run), tmp_path / "thresholds.svg")
    assert len(spied["lines"]) == 2 * 21


@pytest.mark.filterwarnings("error")
def test_thresholds_over_the_rounds(tmp_path, spied):
    run = write_run(tmp_path, with_thresholds(records(stages=(2, 3))))
    plots.thresholds_by_round(read_run(run), tmp_path / "thresholds.svg")
    assert len(spied["lines"]) == 8
    x, y, name = spied["lines"][1]
    assert name == "conv2" and x == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(y, [0.002, 0.004, 0.002, 0.004, 0.006])
    np.testing.assert_allclose(spied["lines"][5][1], 4 * np.array(y))


def test_nothing_is_drawn_where_nothing_was_pruned_or_kept(tmp_path):
    run = write_run(tmp_path, records(stages=(4,)))
    assert maps.plot_filters(read_run(run), tmp_path) == []
    write_filters(run, {(0, 4): np.ones((5, sum(SIZES)), bool)})
    assert maps.plot_filters(read_run(run), tmp_path) == []
    assert not [p for p in plot_run(run) if p.stem in (*PLOTS, "thresholds_by_round")]
