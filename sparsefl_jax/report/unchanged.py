"""Finds what stays the same over a run: a sentence says it better than a flat plot."""

import numpy as np

from sparsefl_jax.report.lines import by_round, column
from sparsefl_jax.report.load import Run
from sparsefl_jax.report.masks import read_masks


def changes(run: Run) -> dict[int, float] | None:
    """Returns the mismatch of every round that changed the deployed mask.

    Rounds are counted over all stages. Returns None if the records hold no mismatch.

    Example:
      >>> from pathlib import Path
      >>> train = [dict(stage=1, round=r, mismatch=float(r == 2)) for r in (1, 2, 3)]
      >>> changes(Run(Path("a"), train, [], [0, 10], {}, {}, None))
      {12: 1.0}
    """
    mismatch = column(by_round(run, run.train), "mismatch")
    return mismatch[mismatch > 0].to_dict() if len(mismatch) else None


def constant_density(run: Run) -> bool | None:
    """Tells whether every layer has one density throughout; None if unknown."""
    table = by_round(run, run.train)
    if not len(column(table, "density")):
        return None
    return bool((table.filter(regex="^(layer_)?density").nunique() <= 1).all())


def same_masks(packed: list[np.ndarray]) -> bool:
    """Tells whether packed masks are all equal."""
    return all(np.array_equal(packed[0], other) for other in packed[1:])


def same_client_masks(run: Run) -> bool:
    """Tells whether in every observed round all clients sent the same mask."""
    kept = read_masks(run.path)
    several = [s.packed for s in kept.clients if len(s.packed) > 1] if kept else []
    return bool(several) and all(same_masks(list(rows)) for rows in several)
