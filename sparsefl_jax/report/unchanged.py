"""Finds what stays the same over a run: a sentence tells it better than a flat plot."""

import numpy as np

from sparsefl_jax.core.formats import format_percent
from sparsefl_jax.report.lines import finite
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
    known = [r for r in run.train if finite(r.get("mismatch"))]
    if not known:
        return None
    return {
        run.rounds_until(r["stage"], r["round"]): r["mismatch"]
        for r in known
        if r["mismatch"] > 0
    }


def constant_density(run: Run) -> bool | None:
    """Tells whether every layer has one density throughout; None if unknown."""
    known = [r for r in run.train if finite(r.get("density"))]
    if not known:
        return None
    first = known[0]
    return all(
        r["density"] == first["density"]
        and r.get("layer_density") == first.get("layer_density")
        for r in known
    )


def same_masks(packed: list[np.ndarray]) -> bool:
    """Tells whether packed masks are all equal."""
    return all(np.array_equal(packed[0], other) for other in packed[1:])


def sentences(run: Run) -> list[str]:
    """Says which plots are left out because they would show only a constant.

    Example:
      >>> from pathlib import Path
      >>> train = [dict(stage=0, round=r, mismatch=0.0) for r in (1, 2, 3)]
      >>> sentences(Run(Path("a"), train, [], [0], {}, {}, None))
      ["The server's mask never changes, so its mismatch over the rounds is not drawn."]
    """
    lines = []
    if constant_density(run):
        density = format_percent(run.train[-1]["density"])
        lines.append(
            f"The server's mask keeps {density} of the kernels in every round, and the "
            "same share of each layer, so the density over the rounds is not drawn."
        )
    changed = changes(run)
    if changed == {}:
        lines.append(
            "The server's mask never changes, so its mismatch over the rounds is not "
            "drawn."
        )
    elif changed is not None and len(changed) == 1:
        [(round, mismatch)] = changed.items()
        lines.append(
            f"The server's mask changes in round {round} only, with a mismatch of "
            f"{format_percent(mismatch)}, so its mismatch over the rounds is not drawn."
        )
    kept = read_masks(run.path)
    several = [s.packed for s in kept.clients if len(s.packed) > 1] if kept else []
    if several and all(same_masks(list(rows)) for rows in several):
        lines.append(
            "The clients of every observed round sent the same mask, so the mismatch "
            "between clients is not drawn."
        )
    return lines
