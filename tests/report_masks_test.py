import json
import math

import jax.numpy as jnp
import numpy as np
import pytest
from report_test import records, svg_size, write_run

from sparsefl_jax.report import maps, masks, plot_run, read_run
from sparsefl_jax.report.load import Run
from sparsefl_jax.sparsity.masks import jaccard_mismatch

NAMES = ["a/kernel", "b/kernel", "c/kernel", "d/kernel"]
SIZES = [5, 11, 40, 3]  # no layer but the first begins at a byte, some end within one
WIDTH = math.ceil(sum(SIZES) / 8)


def draw(count, density, seed=0):
    """Draws random masks, bool [count, entries]."""
    return np.random.default_rng(seed).random((count, sum(SIZES))) < density


def write_masks(folder, server=None, clients=None):
    folder = folder / "masks"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "layers.json").write_text(json.dumps({"names": NAMES, "sizes": SIZES}))
    for (stage, done), mask in (server or {}).items():
        np.save(folder / f"server_{stage}_{done:06d}.npy", np.packbits(mask))
    for (stage, done), rows in (clients or {}).items():
        packed = np.packbits(rows, axis=1)
        np.save(folder / f"clients_{stage}_{done:06d}.npy", packed)
    return folder


@pytest.mark.parametrize("piece", [1 << 20, 8, 3])
@pytest.mark.parametrize("density", [0.05, 0.5, 1.0])
def test_packed_mismatch_is_that_of_the_bool_masks(monkeypatch, piece, density):
    monkeypatch.setattr(masks, "_PIECE", piece)
    drawn = draw(5, density)
    whole, by_layer = masks.pairwise_mismatch(np.packbits(drawn, axis=1), SIZES)
    edges = np.cumsum([0, *SIZES])
    trees = [
        {n: jnp.array(m[a:b]) for n, a, b in zip(NAMES, edges, edges[1:], strict=False)}
        for m in drawn
    ]
    select = dict.fromkeys(NAMES, True)
    for i in range(5):
        for j in range(5):
            expected, layers = jaccard_mismatch(trees[i], trees[j], select)
            np.testing.assert_allclose(whole[i, j], expected, atol=1e-6)
            np.testing.assert_allclose(by_layer[:, i, j], layers, atol=1e-6)


def test_an_empty_union_is_no_mismatch_and_a_disjoint_one_is_whole():
    empty, full = np.zeros(sum(SIZES), bool), np.ones(sum(SIZES), bool)
    left = np.arange(sum(SIZES)) % 2 == 0
    packed = [np.packbits(m) for m in (empty, empty, full, left, ~left)]
    whole, by_layer = masks.pairwise_mismatch(packed, SIZES)
    assert whole[0, 1] == 0 and (by_layer[:, 0, 1] == 0).all()
    assert whole[0, 2] == 1 and whole[3, 4] == 1
    assert (np.diagonal(whole) == 0).all() and (whole == whole.T).all()


def test_read_masks_orders_snapshots_and_refuses_damaged_files(tmp_path):
    run = Run(tmp_path, [], [], [0, 1], {}, {}, None)
    assert masks.read_masks(run) is None
    one = draw(1, 0.5)[0]
    at = [(1, 200), (0, 1), (1, 1_000_000), (1, 3)]
    folder = write_masks(tmp_path, dict.fromkeys(at, one), {(1, 7): draw(4, 0.5)})
    kept = masks.read_masks(run)
    assert [s[:2] for s in kept.server] == sorted(at)
    assert [s.packed.shape for s in kept.clients] == [(4, WIDTH)]
    whole, rows = kept.active(kept.server[0]), kept.active(kept.clients[0])
    np.testing.assert_array_equal(whole["b/kernel"], one[5:16])
    np.testing.assert_array_equal(rows["d/kernel"], draw(4, 0.5)[:, 56:])
    path = folder / "server_1_000003.npy"
    for damaged in (path.read_bytes()[:-1], b""):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="3.npy cannot be read") as error:
            masks.read_masks(run)
        assert "\n" not in str(error.value)
    np.save(path, np.zeros(WIDTH + 1, np.uint8))
    with pytest.raises(ValueError, match=f"expected uint8 with {WIDTH} bytes a mask"):
        masks.read_masks(run)


@pytest.mark.filterwarnings("error")
def test_plot_run_draws_the_masks_that_were_kept(tmp_path, monkeypatch):
    run = write_run(tmp_path, records(stages=(2, 8)))
    server = {(0, 2): draw(1, 0.3)[0]}
    server |= {(1, r): draw(1, 0.3, seed=r)[0] for r in range(1, 9)}
    server |= {(2, 1): draw(1, 0.3)[0]}  # ahead of the metrics
    clients = {(1, 2): draw(2, 0.3), (1, 8): draw(30, 0.3), (1, 4): draw(1, 0.3)}
    write_masks(run, server, clients)
    seen = {}
    for name in ("mismatch_between_rounds", "mismatch_between_clients"):
        drawing = getattr(maps, name)

        def spy(*given, name=name, drawing=drawing):
            seen[name] = given
            drawing(*given)

        monkeypatch.setattr(maps, name, spy)
    drawn = plot_run(run)[-3:]
    names = ["mask_mismatch", "client_mismatch", "client_mismatch_by_layer"]
    assert [path.stem for path in drawn] == names
    assert all(min(svg_size(path)) >= 180 for path in drawn)
    _, rounds, whole = seen["mismatch_between_rounds"]
    assert rounds == list(range(2, 11)) and whole.shape == (9, 9)
    assert whole[0, 1] > 0.5
    *_, (first, last) = seen["mismatch_between_clients"]
    assert first["clients"] == ["1", "2"] and last["clients"] == []
    assert last["mismatch"].shape == (30, 30)
    pairs = last["mismatch"][~np.eye(30, dtype=bool)]
    assert last["mean"] == pytest.approx(pairs.mean())
    assert set(last["layer_mean"]) == set(NAMES)


@pytest.mark.filterwarnings("error")
def test_masks_that_can_not_be_compared_are_not_drawn(tmp_path):
    run = write_run(tmp_path, records(stages=(4,)))
    write_masks(run, {(0, 4): draw(1, 0.3)[0]}, {(0, 4): draw(1, 0.3)})
    assert maps.plot_masks(read_run(run), tmp_path) == []


@pytest.mark.filterwarnings("error")
def test_of_many_observed_rounds_the_first_and_the_last_are_drawn(tmp_path):
    run = write_run(tmp_path, records(stages=(20,)))
    write_masks(run, {}, {(0, r): draw(3, 0.3, seed=r) for r in range(1, 21)})
    assert len(maps.plot_masks(read_run(run), tmp_path)) == 2
    width, height = svg_size(tmp_path / "client_mismatch.svg")
    assert 0.7 < width / height < 1.5  # three rows of three
