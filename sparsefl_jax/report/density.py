"""Compares the density that a configuration asks for with the one that was reached.

A density is the share of alive entries: over the leaves that the method may prune, as
configurations ask for it, over all kernels, or over all parameters of a model.
"""

from fnmatch import fnmatchcase
from typing import Any

from sparsefl_jax.core.formats import MISSING, format_percent
from sparsefl_jax.report.lines import finite, short
from sparsefl_jax.report.load import Run
from sparsefl_jax.report.masks import read_masks

_SECTIONS = ("algorithm", "first_stage")
_LEAVES = ("kernel", "bias")


def asked(run: Run) -> dict[str, float]:
    """Returns the densities that the configuration asks for, by their fields' names.

    Example:
      >>> from pathlib import Path
      >>> config = {"algorithm": {"name": "snip", "density": 0.1}, "density": 0.1}
      >>> asked(Run(Path("a"), [], [], [0], {}, config, None))
      {'algorithm.density': 0.1}
    """
    return {
        f"{section}.{name}": value
        for section in _SECTIONS
        for name, value in (run.config.get(section) or {}).items()
        if "density" in name and finite(value)
    }


def prunable(run: Run) -> tuple[str, list[str]]:
    """Returns the field that selects the leaves to prune, and its globs; or '', []."""
    for section in _SECTIONS:
        globs = (run.config.get(section) or {}).get("prunable")
        if globs and isinstance(globs, list):
            return f"{section}.prunable", list(map(str, globs))
    return "", []


def density_rows(run: Run) -> list[list[str]]:
    """Returns the last density of each layer, of the prunable ones, and of all.

    Args:
      run: the records.

    Returns:
      A head, then a row for each layer of the server's model, their totals, and one for
      each deployed model; [] if nothing is known. What was asked for is a column
      if anything was.
    """
    by_layer = (run.train[-1].get("layer_density") if run.train else None) or {}
    kept = read_masks(run.path)
    sizes = dict(zip(kept.names, kept.sizes, strict=True)) if kept else {}
    _, globs = prunable(run)
    chosen = {n: v for n, v in by_layer.items() if selected(n, globs)}
    # Globs such as `*` prune biases too, so what they ask for is of all parameters.
    leaves = [f"{n.rpartition('/')[0]}/{leaf}" for n in by_layer for leaf in _LEAVES]
    every = bool(leaves) and all(selected(leaf, globs) for leaf in leaves)
    wanted, rows = asked(run), []
    target = wanted.get("algorithm.density", wanted.get("first_stage.density"))
    target = "" if target is None else format_percent(target)
    for name, value in by_layer.items():
        left_out = "not pruned" if globs and name not in chosen else ""
        rows.append(_row(short(name), sizes.get(name), left_out, value))
    if chosen and not every:
        rows.append(_together("prunable kernels", chosen, sizes, target))
    if by_layer:
        rows.append(_together("all kernels", by_layer, sizes))
    models = run.evals[-1]["models"] if run.evals else {}
    for name, model in models.items():
        asks = every and name == _server_model(run)
        density, alive = model.get("density"), model.get("parameters")
        known = finite(alive) and finite(density) and density > 0
        count = round(alive / density) if known else None
        rows.append(_row(f"all parameters of {name}", count, target * asks, density))
        if "layer_density" in model:
            mean = model["layer_density"]
            rows.append(_row(f"mean over the layers of {name}", None, "", mean))
    rows = [["over", "entries", "asked for", "reached"], *rows] if rows else []
    return rows if wanted else [[*row[:2], row[-1]] for row in rows]


def density_notes(run: Run) -> list[str]:
    """Says what was asked for and where, and of which model the layers are."""
    field, globs = prunable(run)
    wanted = asked(run)
    lines = [] if wanted else ["The configuration asks for no density."]
    lines += [f"Asked for: {name}={value:g}." for name, value in wanted.items()]
    if globs and wanted:
        lines.append(f"Prunable: the leaves that {field}={', '.join(globs)} selects.")
    if run.train and run.train[-1].get("layer_density"):
        whose = _server_model(run) or "the server's model"
        lines.append(
            "Reached: the share of entries alive after the last round; layers and "
            f"kernels are those of {whose}."
        )
    if run.evals and not _server_model(run):
        lines.append("Personal models: means over all clients.")
    return lines


def _server_model(run: Run) -> str:
    """Returns the name of the model whose mask is recorded; '' for personal ones."""
    models = run.evals[-1]["models"] if run.evals else {}
    names = [name for name, model in models.items() if "layer_density" not in model]
    return "global" if "global" in names else names[-1] if names else ""


def selected(path: str, globs: list[str]) -> bool:
    """Tells whether globs select a leaf, as `masks.prunable` does.

    Example:
      >>> selected("fc/kernel", ["*kernel"]), selected("fc/kernel", ["*kernel", "!fc*"])
      (True, False)
    """
    out = [glob[1:] for glob in globs if glob.startswith("!")]
    into = [glob for glob in globs if not glob.startswith("!")]
    return any(fnmatchcase(path, g) for g in into) and not any(
        fnmatchcase(path, g) for g in out
    )


def _together(
    what: str, layers: dict[str, Any], sizes: dict[str, int], target: str = ""
) -> list[str]:
    """Returns the row of several layers; without values if their sizes are unknown."""
    if not set(layers) <= set(sizes) or not all(map(finite, layers.values())):
        return _row(what, None, target, None)
    total = sum(sizes[name] for name in layers)
    alive = sum(value * sizes[name] for name, value in layers.items())
    return _row(what, total, target, alive / total if total else None)


def _row(what: str, entries: int | None, target: str, value: Any) -> list[str]:
    count = MISSING if entries is None else f"{entries:,}"
    return [what, count, target, format_percent(value if finite(value) else None)]
