"""Runs the missing rows of a paper's table one by one, and writes each result.

    python -m benchmarks.table flash_mnist --list        # what there is, what is next
    python -m benchmarks.table flash_mnist               # everything missing, in order
    python -m benchmarks.table flash_mnist --only spdst pdst --seeds 1
    python -m benchmarks.table flash_mnist --only spdst --out rows   # one of several
    python -m benchmarks.table flash_mnist --merge rows

Each row and seed is a run in `runs/tables/NAME/ROW_seedS`: one seed of each row, then a
second of each. A stopped run is resumed, a finished one is read. A row that needs a GPU
runs where JAX finds one, or with `--only`; one whose data are missing ends the command
with a line that says so. Results go to `benchmarks/tables/NAME.json` and to the pages,
see `benchmarks/pages.py`; commit both. Several processes would lose each other's rows
there: with `--out` each writes a file a row, which `--merge` adds. The field "counted"
names the bits that an entry's Gbit include, if not all.
"""

import argparse
import datetime
import importlib
import json
import sys
from pathlib import Path

import jax

from sparsefl_jax.system import hardware

hardware.use_cpu_cores()  # before JAX starts

from benchmarks import pages  # noqa: E402
from benchmarks.pages import ROOT, page, results  # noqa: E402
from benchmarks.tables import Table  # noqa: E402
from sparsefl_jax import report  # noqa: E402
from sparsefl_jax.core.check import check, one_line  # noqa: E402
from sparsefl_jax.runs import experiment  # noqa: E402
from sparsefl_jax.system import files, interrupt  # noqa: E402


def fill(
    table: Table, name: str, *, root=ROOT, only=None, seeds=None, out=None
) -> None:
    """Runs or resumes the missing runs of a table, in its order.

    Args:
      table: the declaration.
      name: the name of its files.
      root: the directory that holds `runs/`, `benchmarks/` and `docs/`.
      only: the rows to run; None for all.
      seeds: run only seeds below this number; None for all.
      out: a folder for a file of each result; None adds them to the table.

    Raises:
      interrupt.StoppedError: after Ctrl-C; call again to continue.
      ValueError: a run's directory holds another configuration.
    """
    for row, seed in wanted(table, only, seeds):
        if (row, seed) in results(name, root):
            continue
        path = root / "runs/tables" / name / f"{row}_seed{seed}"
        print(f"{name}: {row}, seed {seed}", file=sys.stderr, flush=True)
        begun = (path / "config.json").exists()
        experiment.run(row_config(table, row, seed), path, resume=begun)
        found = {"row": row, "seed": seed} | entry(path, table.best)
        extra = table.extra(path) if table.extra else {}
        if out is None:
            publish(table, name, found | extra, root)
        else:
            Path(out).mkdir(parents=True, exist_ok=True)
            files.write_json(Path(out, f"{row}_seed{seed}.json"), found | extra)


def wanted(table: Table, only=None, seeds=None, every=False) -> list[tuple[str, int]]:
    """Returns the runs of a table in order, restricted to rows and to seeds.

    Rows that need a GPU are left out where there is none, if not `only` or `every`.
    """
    for row in only or ():
        check("only", row, table.rows)
    every |= jax.default_backend() == "gpu"
    rows = only or [r for r, v in table.rows.items() if every or "a GPU" not in v.needs]
    return [(row, seed) for seed in range(seeds or table.seeds) for row in rows]


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
      best: whether the best round counts; each model then has its density there too.

    Returns:
      The accuracies of each model; Gbit of both directions, the FLOPs' share of dense
      ones, and minutes, of all stages together; date, commit, device and versions.
    """
    file = path / "summary.json"
    summary = json.loads(file.read_text())
    bits, flops, dense = (
        sum(stage[key] for stage in summary["stages"] for key in keys)
        for keys in (("bits_up", "bits_down"), ("flops",), ("flops_dense",))
    )
    date = datetime.date.fromtimestamp(file.stat().st_mtime)
    models = {name: dict(model) for name, model in summary["accuracy"].items()}
    if best:
        for name, model in models.items():
            evaluated = _evaluated_models(path, model["best_round"])[name]
            model["best_density"] = pages.density(evaluated)
    return {
        "accuracy": models,
        "gbit": bits / 1e9,
        "flops_share": flops / dense,
        "minutes": summary["seconds"] / 60,
        "date": date.isoformat(),
        **{key: summary[key] for key in ("commit", "device", "versions")},
    }


def _evaluated_models(path: Path, round: int) -> dict:
    """Returns the models of an evaluation in a run's last stage."""
    records = report.read_records(path / "metrics.jsonl")
    of_round = (r for r in records if r["phase"] == "eval" and r["round"] == round)
    return max(of_round, key=lambda record: record["stage"])["models"]


def publish(table: Table, name: str, new: dict, root=ROOT) -> None:
    """Adds a result to the table's JSON file and redraws the table on its page."""
    entries = results(name, root) | {(new["row"], new["seed"]): new}
    rows = list(table.rows)
    runs = sorted(entries, key=lambda run: (rows.index(run[0]), run[1]))
    ordered = [entries[run] for run in runs]
    path = root / "benchmarks" / "tables" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(path, json.dumps(ordered, indent=1) + "\n")
    text = pages.markdown(table, ordered)
    if (document := page(name, root)).exists():
        pages.redraw(document, name, text)
    pages.draw_overview(root)
    print(text, flush=True)


def listing(table: Table, name: str, root=ROOT, only=None, seeds=None) -> str:
    """Returns a line for each run in order: done, begun, missing, or what it needs."""
    done, lines = results(name, root), []
    for row, seed in wanted(table, only, seeds, every=True):
        begun = root / "runs/tables" / name / f"{row}_seed{seed}" / "config.json"
        needs = table.rows[row].needs
        state = "begun" if begun.exists() else f"needs {needs}" if needs else "-"
        if found := done.get((row, seed)):
            first = next(iter(found["accuracy"]))
            state = f"done   {pages.accuracy([found], first, table.best)}"
        lines.append(f"{row:16} seed {seed}  {state}")
    return "\n".join(lines)


def main() -> None:
    """Parses the command line; a signal has its own code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=pages.TABLES)
    parser.add_argument("--list", action="store_true", help="show, run nothing")
    parser.add_argument("--only", nargs="+", help="rows")
    parser.add_argument("--out", help="folder for a file of each result")
    parser.add_argument("--merge", help="folder of such files; runs nothing")
    parser.add_argument("--seeds", type=int, help="seeds below this number")
    args = parser.parse_args()
    table = pages.declared(args.name)
    chosen = {"only": args.only, "seeds": args.seeds}
    try:
        if args.list:
            return print(listing(table, args.name, **chosen))
        if args.merge:
            found = sorted(Path(args.merge).glob("*.json"))
            for path in found or sys.exit(f"error: --merge={args.merge} has no result"):
                publish(table, args.name, json.loads(path.read_text()))
            return
        hardware.keep_compilations()
        fill(table, args.name, **chosen, out=args.out)
    except (interrupt.StoppedError, KeyboardInterrupt) as error:
        command = "python -m benchmarks.table " + " ".join(sys.argv[1:])
        print(f"{str(error) or 'interrupted'}; to go on:\n{command}", file=sys.stderr)
        sys.exit(getattr(error, "code", 130))
    except (FloatingPointError, ValueError, OSError) as error:
        sys.exit(f"error: {one_line(error)}")


if __name__ == "__main__":
    main()
