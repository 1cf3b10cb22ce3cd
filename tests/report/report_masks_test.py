import json

import numpy as np
import pytest

from sparsefl_jax.report import kept_masks
from sparsefl_jax.report.load import Run

NAMES = ["a/kernel", "b/kernel", "c/kernel", "d/kernel"]
SIZES = [5, 11, 40, 3]  # no layer but the first begins at a byte, some end within one
WIDTH = 8  # bytes


def draw(count, density, seed=0):
    """Draws random masks, bool [count, entries]."""
    return np.random.default_rng(seed).random((count, sum(SIZES))) < density


def write_masks(run, server=None, clients=None, filters=None):
    """Writes the masks of a run, by stage and round; returns their folder."""
    folder = run / "masks"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("layers", "filters"):
        text = json.dumps({"names": NAMES, "sizes": SIZES})
        (folder / f"{name}.json").write_text(text)
    kinds = {"server": server, "clients": clients, "filters": filters}
    for kind, kept in kinds.items():
        for (stage, done), rows in (kept or {}).items():
            path = folder / f"{kind}_{stage}_{done:06d}.npy"
            np.save(path, np.packbits(rows, axis=-1))
    return folder


def test_read_masks_orders_snapshots_and_refuses_damaged_files(tmp_path):
    run = Run(tmp_path, [], [], [0, 1], {}, {}, None)
    assert kept_masks.read_masks(run) is None
    one, several = draw(1, 0.5)[0], draw(4, 0.5)
    at = [(1, 200_000), (0, 1), (1, 1_000_000), (1, 3)]
    folder = write_masks(tmp_path, dict.fromkeys(at, one), {(1, 7): several})
    write_masks(tmp_path, filters={(1, 4): several, (0, 12): several[:1]})
    kept = kept_masks.read_masks(run)
    assert [s[:2] for s in kept.server] == sorted(at)
    assert [s.done for s in kept.server] == [1, 4, 200_001, 1_000_001]
    assert [s.packed.shape for s in kept.clients] == [(4, WIDTH)]
    filters = kept_masks.read_masks(run, "filters")
    assert [s[:2] for s in filters.filters] == [(0, 12), (1, 4)]
    whole, rows = kept.active(kept.server[0]), kept.active(kept.clients[0])
    np.testing.assert_array_equal(whole["b/kernel"], one[5:16])
    np.testing.assert_array_equal(rows["d/kernel"], several[:, 56:])
    path = folder / "server_1_000003.npy"
    for damaged in (path.read_bytes()[:-1], b""):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="3.npy cannot be read") as error:
            kept_masks.read_masks(run)
        assert "\n" not in str(error.value)
    np.save(path, np.zeros(WIDTH + 1, np.uint8))
    with pytest.raises(ValueError, match=f"expected uint8 with {WIDTH} bytes a mask"):
        kept_masks.read_masks(run)
