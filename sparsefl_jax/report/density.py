"""Tells which densities a run has reached.

A density is the share of alive entries: over all kernels, or over all parameters of a
model.
"""

from sparsefl_jax.core.formats import MISSING, format_percent
from sparsefl_jax.report.kept_masks import read_masks
from sparsefl_jax.report.load import Run, is_finite


def density_rows(run: Run) -> list[list[str]]:
    """Returns the last density of each layer and of all.

    Args:
      run: the records.

    Returns:
      A head, then a row for each layer of the server's model, one for all of them, and
      one for each deployed model; [] if nothing is known.
    """
    by_layer = (run.train[-1].get("layer_density") if run.train else None) or {}
    kept = read_masks(run)
    sizes = dict(zip(kept.names, kept.sizes, strict=True)) if kept else {}
    rows = [
        (name.removesuffix("/kernel"), sizes.get(name), x)
        for name, x in by_layer.items()
    ]
    if by_layer:
        rows.append(("all kernels", sum(sizes.values()), run.train[-1].get("density")))
    for name, model in (run.evals[-1]["models"] if run.evals else {}).items():
        density, alive = model.get("density"), model.get("parameters")
        count = round(alive / density) if is_finite(alive) and density else None
        rows.append((f"all parameters of {name}", count, density))
        if "layer_density" in model:
            over = f"mean over the layers of {name}"
            rows.append((over, None, model["layer_density"]))
    table = [
        [name, f"{count:,}" if count else MISSING, format_percent(reached)]
        for name, count, reached in rows
    ]
    return [["over", "entries", "reached"], *table] if rows else []


def server_model(run: Run) -> str:
    """Returns the name of the model whose mask is recorded; '' for personal ones."""
    models = run.evals[-1]["models"] if run.evals else {}
    return next((name for name, m in models.items() if "layer_density" not in m), "")
