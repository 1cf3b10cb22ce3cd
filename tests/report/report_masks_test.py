import json

import numpy as np
import pytest

from sparsefl_jax.report import kept_masks
from sparsefl_jax.report.load import Run

NAMES = ["a/kernel", "b/kernel", "c/kernel", "d/kernel"]
SIZES = [5, 11, 40, 3]  # no layer but the first begins at a byte, some end within one
WIDTH = 8  # bytes


def test_read_masks_orders_snapshots_and_refuses_damaged_files(tmp_path):
    run = Run(tmp_path, [], [], [0, 1], {}, {}, None)
    assert kept_masks.read_masks(run) is None
    mask = np.random.default_rng(0).random(sum(SIZES)) < 0.5
    at = [(1, 200_000), (0, 1), (1, 1_000_000), (1, 3)]
    (folder := tmp_path / "masks").mkdir()
    text = json.dumps({"names": NAMES, "sizes": SIZES})
    (folder / "layers.json").write_text(text)
    for stage, done in at:
        np.save(folder / f"server_{stage}_{done:06d}.npy", np.packbits(mask))
    kept = kept_masks.read_masks(run)
    assert [s[:2] for s in kept.server] == sorted(at)
    whole = kept.active(kept.server[0])
    np.testing.assert_array_equal(whole["b/kernel"], mask[5:16])
    np.testing.assert_array_equal(whole["d/kernel"], mask[56:])
    path = folder / "server_1_000003.npy"
    for damaged in (path.read_bytes()[:-1], b""):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="3.npy cannot be read") as error:
            kept_masks.read_masks(run)
        assert "\n" not in str(error.value)
    np.save(path, np.zeros(WIDTH + 1, np.uint8))
    with pytest.raises(ValueError, match=rf"expected uint8 \[{WIDTH}\]"):
        kept_masks.read_masks(run)
