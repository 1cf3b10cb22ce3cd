"""Runs the missing rows of a paper's table one by one, and writes each result.

    python -m benchmarks.table flash_mnist --list        # what there is, what is next
    python -m benchmarks.table flash_mnist               # everything missing, in order
    python -m benchmarks.table flash_mnist --only spdst --seeds 1

Each row and seed is a run in `runs/tables/NAME/ROW_seedS`. A stopped run is resumed, a
finished one is read. Results go to `benchmarks/tables/NAME.json`, and between
`<!-- table NAME -->` and `<!-- end -->` on the page of the paper in
`docs/reproduction`; commit both. The field "stale" marks an entry that the code no
longer reproduces: the table shows its text after the accuracy, and the run counts as
missing (move its folder away first). The field "counted" says which of the bits an
entry's Gbit are, if not all.

A method that deploys several models has a row for each, with that model's accuracy and
density. The paper's figure and the table's own columns are in the first of these.
"""

import argparse
import datetime
import importlib
import json
import re
import statistics
import sys
from pathlib import Path

from sparsefl_jax.system import hardware

hardware.use_cpu_cores()  # before JAX starts

from benchmarks.tables import Table  # noqa: E402
from sparsefl_jax import report  # noqa: E402
from sparsefl_jax.core.validate import one_line  # noqa: E402
from sparsefl_jax.runs import experiment  # noqa: E402
from sparsefl_jax.system import files, interrupt  # noqa: E402

ROOT = Path(__file__).parent.parent
_HEAD = ("configuration", "model", "paper, %", "here, %", "seeds", "density", "Gbit")
_BEHIND = len(_HEAD) - 1  # the density, which a table's own columns follow
_HEAD += ("FLOPs / dense", "minutes", "date", "commit")


def fill(table: Table, name: str, *, root=ROOT, only=None, seeds=None) -> None:
    """Runs or resumes the missing runs of a table, in its order.

    Args:
      table: the declaration.
      name: the name of its files.
      root: the directory that holds `runs/`, `benchmarks/` and `docs/`.
      only: the row to run; None for all.
      seeds: run only seeds below this number; None for all.

    Raises:
      interrupt.StoppedError: after Ctrl-C; call again to continue.
      ValueError: a run's directory holds another configuration.
    """
    for row, seed in wanted(table, only, seeds):
        if (row, seed) in measured(name, root):
            continue
        path = root / "runs/tables" / name / f"{row}_seed{seed}"
        print(f"{name}: {row}, seed {seed}", file=sys.stderr, flush=True)
        begun = (path / "config.json").exists()
        experiment.run(row_config(table, row, seed), path, resume=begun)
        found = {"row": row, "seed": seed} | entry(path, table.best)
        extra = table.extra(path) if table.extra else {}
        publish(table, name, found | extra, root)


def wanted(table: Table, only=None, seeds=None) -> list[tuple[str, int]]:
    """Returns the runs of a table in order, restricted to a row and to seeds."""
    if only is not None and only not in table.rows:
        raise ValueError(f"only={only!r}, expected one of {', '.join(table.rows)}")
    return [
        (row, seed)
        for row, seed in table.order
        if only in (None, row) and (seeds is None or seed < seeds)
    ]


def row_config(table: Table, row: str, seed: int):
    """Returns the configuration of a row with one seed."""
    file, _, argument = table.rows[row].config.partition(":")
    module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    config = module.get_config(argument)
    config.update_from_flattened_dict(table.rows[row].overrides)
    config.seed = seed
    return config


def entry(path: Path, best: bool = False) -> dict:
    """Returns the entry of a finished run in the table.

    Args:
      path: the directory of the run.
      best: whether the best round counts, of which each model then has the density too.
    """
    file = path / "summary.json"
    summary = json.loads(file.read_text())
    bits, flops, dense = (
        sum(stage[key] for stage in summary["stages"] for key in keys)
        for keys in (("bits_up", "bits_down"), ("flops",), ("flops_dense",))
    )
    date = datetime.date.fromtimestamp(file.stat().st_mtime)
    models = {name: dict(model) for name, model in summary["accuracy"].items()}
    for name, model in models.items() if best else ():
        evaluated = _evaluated_models(path, model["best_round"])[name]
        model["best_density"] = _density(evaluated)
    return {
        "accuracy": models,
        "gbit": bits / 1e9,
        "flops_share": flops / dense,
        "minutes": summary["seconds"] / 60,
        "date": date.isoformat(),
        **{key: summary[key] for key in ("commit", "device", "versions")},
    }


def _density(model: dict) -> float:
    """Returns a model's density; of personal ones the mean over layers and clients."""
    return model.get("layer_density", model["density"])


def _evaluated_models(path: Path, round: int) -> dict:
    """Returns the models of an evaluation in a run's last stage."""
    records = report.read_records(path / "metrics.jsonl")
    of_round = (r for r in records if r["phase"] == "eval" and r["round"] == round)
    return max(of_round, key=lambda record: record["stage"])["models"]


def results(name: str, root=ROOT) -> dict[tuple[str, int], dict]:
    """Returns all entries of a table by row and seed."""
    path = root / "benchmarks" / "tables" / f"{name}.json"
    entries = json.loads(path.read_text()) if path.exists() else []
    return {(e["row"], e["seed"]): e for e in entries}


def measured(name: str, root=ROOT) -> dict[tuple[str, int], dict]:
    """Returns the entries that are not stale."""
    return {run: e for run, e in results(name, root).items() if "stale" not in e}


def publish(table: Table, name: str, new: dict, root=ROOT) -> None:
    """Adds a result to the table's JSON file and redraws the table on its page."""
    entries = results(name, root) | {(new["row"], new["seed"]): new}
    ordered = [entries[run] for run in sorted(entries, key=_position(table))]
    path = root / "benchmarks" / "tables" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(path, json.dumps(ordered, indent=1) + "\n")
    text = markdown(table, ordered)
    if (document := page(name, root)).exists():
        redraw(document, name, text)
    print(text, flush=True)


def redraw(document: Path, name: str, text: str) -> None:
    """Writes a table between its markers on a page."""
    before = document.read_text()
    marks = rf"(<!-- table {re.escape(name)} -->\n).*?(<!-- end -->)"
    after = re.sub(marks, lambda m: m[1] + text + "\n" + m[2], before, flags=re.S)
    files.write_text(document, after)


def page(name: str, root=ROOT) -> Path:
    """Returns the page of the paper with which a table's name begins."""
    return root / "docs" / "reproduction" / f"{name.partition('_')[0]}.md"


def _position(table: Table):
    rows = list(table.rows)
    return lambda run: (rows.index(run[0]) if run[0] in rows else len(rows), run[1])


def markdown(table: Table, entries: list[dict]) -> str:
    """Formats the table as Markdown, with mean and sample deviation over seeds.

    Rows that have not been run are counted below the table.
    """
    head = [*_HEAD[:_BEHIND], *table.columns, *_HEAD[_BEHIND:]]
    rows = [head, ["---"] * 2 + ["--:"] * (len(head) - 4) + ["---"] * 2]
    run = {e["row"] for e in entries} & set(table.rows)
    for name in (name for name in table.rows if name in run):
        row, of_row = table.rows[name], [e for e in entries if e["row"] == name]
        of_row = [e for e in of_row if "stale" not in e] or of_row
        settings = [f"`{row.config.removeprefix('configs/')}`"]
        settings += [f"`{key}={value}`" for key, value in row.overrides.items()]
        own = [c for c in table.columns if c in of_row[0]]
        first = {"paper, %": row.paper or "-"} | {c: _mean(of_row, c, 3) for c in own}
        for model in of_row[0]["accuracy"]:
            cells = {"configuration": " ".join(settings), "model": model} | first
            cells |= _measured(of_row, model, table.best)
            rows.append([cells.get(column, "-") for column in head])
            first = {}
    lines = [f"| {' | '.join(row)} |" for row in rows if run]
    declared = len(table.rows)
    if len(run) < declared:
        left = f"{declared - len(run)} of {declared}"
        lines += ["", f"Rows not run: {left}; `--list` names them."]
    return "\n".join(lines)


def _measured(entries: list[dict], model: str, best: bool) -> dict[str, str]:
    """Returns the measured cells of one model of a row."""
    dates = sorted({e["date"] for e in entries})
    counted = dict.fromkeys(e["counted"] for e in entries if "counted" in e)
    return {
        "here, %": _accuracy(entries, model, best),
        "seeds": ", ".join(str(e["seed"]) for e in entries),
        "density": _densities([e["accuracy"][model] for e in entries], best),
        "Gbit": _noted(_mean(entries, "gbit", 2), counted),
        "FLOPs / dense": _mean(entries, "flops_share", 3),
        "minutes": _mean(entries, "minutes", 0),
        "date": " to ".join(dict.fromkeys((dates[0], dates[-1]))),
        "commit": ", ".join(dict.fromkeys(e["commit"] or "-" for e in entries)),
    }


def _mean(entries: list[dict], key: str, digits: int) -> str:
    return f"{statistics.fmean(e[key] for e in entries):.{digits}f}"


def _accuracy(entries: list[dict], model: str, best: bool) -> str:
    """Formats the final accuracy of a model, or its best one followed by the final."""
    notes = [f"final {_spread(entries, model, 'final')}"] if best else []
    notes += dict.fromkeys(e["stale"] for e in entries if "stale" in e)
    return _noted(_spread(entries, model, "best" if best else "final"), notes)


def _densities(models: list[dict], best: bool) -> str:
    """Formats the density beside the accuracy: of the same model, in the same round.

    An entry may lack the density in the best round; then only the last one's is shown.
    """
    final = f"{statistics.fmean(map(_density, models)):.3f}"
    if not best:
        return final
    if any("best_density" not in model for model in models):
        return f"(final {final})"
    shown = f"{statistics.fmean(model['best_density'] for model in models):.3f}"
    return shown if shown == final else f"{shown} (final {final})"


def _noted(shown: str, notes) -> str:
    return shown + (f" ({', '.join(notes)})" if notes else "")


def _spread(entries: list[dict], name: str, which: str) -> str:
    """Formats the mean and sample deviation over seeds of a model's accuracy in %."""
    values = [100 * e["accuracy"][name][which] for e in entries]
    text = f"{statistics.fmean(values):.2f}"
    return text + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")


def listing(table: Table, name: str, root=ROOT, only=None, seeds=None) -> str:
    """Returns a line for each run in order: done, begun or missing."""
    done, lines = measured(name, root), []
    for row, seed in wanted(table, only, seeds):
        begun = root / "runs/tables" / name / f"{row}_seed{seed}" / "config.json"
        state = "begun" if begun.exists() else "-"
        if found := done.get((row, seed)):
            accuracy = _accuracy([found], next(iter(found["accuracy"])), table.best)
            state = f"done   {accuracy}"
        lines.append(f"{row:16} seed {seed}  {state}")
    return "\n".join(lines)


def main() -> None:
    """Parses the command line; a signal has its own code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    folder = ROOT / "benchmarks" / "tables"
    names = sorted(p.stem for p in folder.glob("[!_]*.py"))
    parser.add_argument("name", choices=names)
    parser.add_argument("--list", action="store_true", help="show, run nothing")
    parser.add_argument("--only", help="one row")
    parser.add_argument("--seeds", type=int, help="seeds below this number")
    args = parser.parse_args()
    table = importlib.import_module(f"benchmarks.tables.{args.name}").TABLE
    chosen = {"only": args.only, "seeds": args.seeds}
    try:
        if args.list:
            return print(listing(table, args.name, **chosen))
        hardware.keep_compilations()
        fill(table, args.name, **chosen)
    except (interrupt.StoppedError, KeyboardInterrupt) as error:
        command = "python -m benchmarks.table " + " ".join(sys.argv[1:])
        print(f"{str(error) or 'interrupted'}; to go on:\n{command}", file=sys.stderr)
        sys.exit(getattr(error, "code", 130))
    except (FloatingPointError, ValueError, OSError) as error:
        sys.exit(f"error: {one_line(error)}")


if __name__ == "__main__":
    main()
