"""Compares the density that a configuration asks for with the one that was reached.

A density is the share of alive entries: over the leaves that the method may prune, as
configurations ask for it, over all kernels, or over all parameters of a model.
"""

from fnmatch import fnmatchcase
from typing import Any

from sparsefl_jax.core.formats import MISSING, format_percent
from sparsefl_jax.report.lines import finite
from sparsefl_jax.report.load import Run
from sparsefl_jax.report.masks import read_masks

_SECTIONS = ("algorithm", "first_stage")


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
        if globs := (run.config.get(section) or {}).get("prunable"):
            return f"{section}.prunable", list(map(str, globs))
    return "", []


def density_rows(run: Run) -> list[list[str]]:
    """Returns the last density of each layer, of the prunable ones, and of all.

    Returns:
      A head, then a row for each layer of the target model, their totals, and one for
      each deployed model; [] if nothing is known.
    """
    last = run.train[-1] if run.train else {}
    by_layer = last.get("layer_density") or {}
    kept = read_masks(run.path)
    sizes = dict(zip(kept.names, kept.sizes, strict=True)) if kept else {}
    _, globs = prunable(run)
    chosen = [name for name in by_layer if selected(name, globs)]
    rows = [
        _row(
            name,
            sizes.get(name),
            "not pruned" if globs and name not in chosen else "",
            value,
        )
        for name, value in by_layer.items()
    ]
    if chosen and all(name in sizes for name in chosen):
        total = sum(sizes[name] for name in chosen)
        alive = [by_layer[name] * sizes[name] for name in chosen]
        reached = sum(alive) / total if total and all(map(finite, alive)) else None
        rows.append(_row("prunable kernels", total, _target(run), reached))
    if finite(last.get("density")):
        whole = (
            sum(sizes[name] for name in by_layer)
            if set(by_layer) <= set(sizes)
            else None
        )
        rows.append(_row("all kernels", whole, "", last["density"]))
    for name, model in (run.evals[-1]["models"] if run.evals else {}).items():
        count = None
        if finite(model.get("parameters")) and model.get("density"):
            count = round(model["parameters"] / model["density"])
        what = f"all parameters of {name}"
        rows.append(_row(what, count, "", model.get("density")))
        if finite(model.get("layer_density")):
            what = f"unweighted mean over the layers of {name}"
            rows.append(_row(what, None, "", model["layer_density"]))
    return [["over", "entries", "asked for", "reached"], *rows] if rows else []


def density_notes(run: Run) -> list[str]:
    """Says what was asked for and where, and of which model the layers are."""
    wanted, (field, globs) = asked(run), prunable(run)
    if wanted:
        fields = ", ".join(f"{name}={value:g}" for name, value in wanted.items())
        lines = [
            f"Asked for: {fields}"
            + (
                f", over the leaves that match {field}={', '.join(globs)}."
                if globs
                else "."
            )
        ]
    else:
        lines = ["The configuration asks for no density."]
    models = list(run.evals[-1]["models"]) if run.evals else []
    if run.train and run.train[-1].get("layer_density"):
        personal = models and finite(
            run.evals[-1]["models"][models[0]].get("layer_density")
        )
        target = "global" if "global" in models else models[-1] if models else ""
        whose = "the server's model" if personal or not target else target
        lines.append(
            f"Reached: the share of alive entries after the last round; layers and "
            f"kernels are those of {whose}."
            + " Personal models are means over all clients."
            * bool(personal)
        )
    return lines


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


def _target(run: Run) -> str:
    """Returns the density that the main stage asks for, or else the first stage."""
    wanted = asked(run)
    for section in _SECTIONS:
        if (value := wanted.get(f"{section}.density")) is not None:
            return format_percent(value)
    return ""


def _row(what: str, entries: int | None, target: str, value: Any) -> list[str]:
    count = MISSING if entries is None else f"{entries:,}"
    return [what, count, target, format_percent(value if finite(value) else None)]
