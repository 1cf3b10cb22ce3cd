"""Tells which densities a run has reached.

A density is the share of alive entries: over the leaves that the method may prune, as
configurations set it, over all kernels, or over all parameters of a model.
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from sparsefl_jax.core.formats import MISSING, format_percent
from sparsefl_jax.report.figure import short
from sparsefl_jax.report.kept_masks import read_masks
from sparsefl_jax.report.load import Run, finite

_SECTIONS = ("algorithm", "first_stage")


def prunable(run: Run) -> dict[str, list[str]]:
    """Returns the globs that select the leaves to prune, by their field; or {}."""
    for section in _SECTIONS:
        globs = (run.config.get(section) or {}).get("prunable")
        if globs and isinstance(globs, list):
            return {f"{section}.prunable": list(map(str, globs))}
    return {}


def density_rows(run: Run) -> list[list[str]]:
    """Returns the last density of each layer, of the prunable ones, and of all.

    Args:
      run: the records.

    Returns:
      A head, then a row for each layer of the server's model, their totals, and one for
      each deployed model; [] if nothing is known.
    """
    by_layer = (run.train[-1].get("layer_density") if run.train else None) or {}
    kept = read_masks(run)
    sizes = dict(zip(kept.names, kept.sizes, strict=True)) if kept else {}
    (globs,) = prunable(run).values() or [[]]
    chosen = [name for name in by_layer if selected(name, globs)]
    rows = [(short(name), sizes.get(name), x) for name, x in by_layer.items()]
    if chosen and len(chosen) < len(by_layer):
        rows.append(("prunable kernels", *_together(chosen, by_layer, sizes)))
    if by_layer:
        rows.append(("all kernels", *_together(by_layer, by_layer, sizes)))
    for name, model in (run.evals[-1]["models"] if run.evals else {}).items():
        density, alive = model.get("density"), model.get("parameters")
        count = round(alive / density) if finite(alive) and density else None
        rows.append((f"all parameters of {name}", count, density))
        if "layer_density" in model:
            over = f"mean over the layers of {name}"
            rows.append((over, None, model["layer_density"]))
    table = [
        [name, MISSING if count is None else f"{count:,}", format_percent(reached)]
        for name, count, reached in rows
    ]
    return [["over", "entries", "reached"], *table] if rows else []


def server_model(run: Run) -> str:
    """Returns the name of the model whose mask is recorded; '' for personal ones."""
    models = run.evals[-1]["models"] if run.evals else {}
    return next((name for name, m in models.items() if "layer_density" not in m), "")


def selected(path: str, globs: list[str]) -> bool:
    """Returns whether globs select a leaf, as `masks.prunable` does.

    Example:
      >>> selected("fc/kernel", ["*kernel"]), selected("fc/kernel", ["*kernel", "!fc*"])
      (True, False)
    """
    found = [glob for glob in globs if fnmatchcase(path, glob.removeprefix("!"))]
    return bool(found) and not any(glob.startswith("!") for glob in found)


def _together(layers: Iterable[str], by_layer: dict, sizes: dict[str, int]) -> tuple:
    """Returns entries and density of layers; None where sizes are unknown."""
    known = all(n in sizes and finite(by_layer[n]) for n in layers)
    total = sum(sizes[name] for name in layers) if known else 0
    if not total:
        return None, None
    return total, sum(by_layer[n] * sizes[n] for n in layers) / total
