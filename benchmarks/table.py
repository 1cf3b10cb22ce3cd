"""Runs the missing rows of a paper's table one by one, and writes each as it ends.

    python -m benchmarks.table flash_mnist --list        # what there is, what is next
    python -m benchmarks.table flash_mnist               # everything missing, in order
    python -m benchmarks.table flash_mnist --only spdst --seeds 1

A row and seed is a run in `runs/tables/NAME/ROW_seedS`. A stopped one goes on where it
was; a finished one found there, also under another name, is taken up if its
configuration is the row's. Results go to `benchmarks/tables/NAME.json` and between
`<!-- table NAME -->` and `<!-- end -->` on the page of its paper in
`docs/reproduction`; both are for you to commit.
An entry that the code has left behind says so under "stale": the words stand beside
its accuracy, and its run counts as missing (move its folder away first).
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
from sparsefl_jax.runs import experiment, run_directory  # noqa: E402
from sparsefl_jax.runs.config import defaults  # noqa: E402
from sparsefl_jax.system import files, interrupt  # noqa: E402

ROOT = Path(__file__).parent.parent
# Where data lies and what is kept beside the results does not change these.
_BESIDE = ("data_dir", "checkpoint_minutes", "sinks", "observe_rounds")
_HEAD = ("configuration", "paper, %", "here, %", "seeds", "density", "Gbit")
_BEHIND = len(_HEAD) - 1  # the density; a table's own columns stand after it
_HEAD += ("FLOPs / dense", "minutes", "date", "commit")


def fill(table: Table, name: str, *, root=ROOT, only=None, seeds=None) -> None:
    """Runs or takes up what is missing of a table, in its order.

    Args:
      table: the declaration.
      name: what its files are called.
      root: the directory that holds `runs/`, `benchmarks/` and `docs/`.
      only: the one row to run; None: all.
      seeds: run seeds below this; None: all.

    Raises:
      interrupt.StoppedError: after Ctrl-C; call again to go on.
      ValueError: a run's directory holds another configuration.
    """
    runs = root / "runs" / "tables" / name
    for row, seed in wanted(table, only, seeds):
        if (row, seed) in measured(name, root):
            continue
        config = row_config(table, row, seed)
        path = find(runs, config)
        if path is None:
            path = runs / f"{row}_seed{seed}"
            print(f"{name}: {row}, seed {seed}", file=sys.stderr, flush=True)
            experiment.run(config, path, resume=(path / "config.json").exists())
        found = {"row": row, "seed": seed} | entry(path, table.best)
        extra = table.extra(path) if table.extra else {}
        publish(table, name, found | extra, root)


def wanted(table: Table, only=None, seeds=None) -> list[tuple[str, int]]:
    """The runs of a table in order, of one row and of seeds below a number if given."""
    if only is not None and only not in table.rows:
        raise ValueError(f"only={only!r}, expected one of {', '.join(table.rows)}")
    return [
        (row, seed)
        for row, seed in table.order
        if only in (None, row) and (seeds is None or seed < seeds)
    ]


def row_config(table: Table, row: str, seed: int):
    """The configuration of a row with one seed."""
    file, _, argument = table.rows[row].config.partition(":")
    module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    config = module.get_config(argument)
    config.update_from_flattened_dict(table.rows[row].overrides)
    config.seed = seed
    return config


def find(runs: Path, config) -> Path | None:
    """A finished run of this configuration among the directories of `runs`."""
    for path in sorted(runs.glob("*/summary.json")):
        if same(run_directory.read_config(path.parent), config):
            return path.parent
    return None


def same(old, new) -> bool:
    """Whether an old run's configuration is this one.

    Fields and arguments that have come since have their defaults.
    """
    default, old, new = (
        run_directory.flatten(json.loads(config.to_json_best_effort()))
        for config in (defaults.default_config(), defaults.complete(old), new)
    )
    return all(
        new.get(field) == old.get(field, default.get(field))
        for field in old | new
        if field not in _BESIDE
    )


def entry(path: Path, best: bool = False) -> dict:
    """What the table keeps of a finished run.

    Args:
      path: its directory.
      best: whether the density is that of the best round, not of the last.
    """
    file = path / "summary.json"
    told = json.loads(file.read_text())
    bits, flops, dense = (
        sum(stage[key] for stage in told["stages"] for key in keys)
        for keys in (("bits_up", "bits_down"), ("flops",), ("flops_dense",))
    )
    date = datetime.date.fromtimestamp(file.stat().st_mtime)
    name, headline = next(iter(told["accuracy"].items()))
    if best:
        headline = _judged(path, headline["best_round"])[name]
    return {
        "accuracy": told["accuracy"],
        # Of personal models as SpaFL counts it: the mean over layers and clients.
        "density": headline.get("layer_density", told["density"]),
        "gbit": bits / 1e9,
        "flops_share": flops / dense,
        "minutes": told["seconds"] / 60,
        "date": date.isoformat(),
        **{key: told[key] for key in ("commit", "device", "versions")},
    }


def _judged(path: Path, round: int) -> dict:
    """What a run's last stage says of its models after a round."""
    records = report.read_records(path / "metrics.jsonl")
    of_round = (r for r in records if r["phase"] == "eval" and r["round"] == round)
    return max(of_round, key=lambda record: record["stage"])["models"]


def results(name: str, root=ROOT) -> dict[tuple[str, int], dict]:
    """What was measured, by row and seed."""
    path = root / "benchmarks" / "tables" / f"{name}.json"
    entries = json.loads(path.read_text()) if path.exists() else []
    return {(e["row"], e["seed"]): e for e in entries}


def measured(name: str, root=ROOT) -> dict[tuple[str, int], dict]:
    """What holds of it: entries that are not stale."""
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
        before = document.read_text()
        marks = rf"(<!-- table {re.escape(name)} -->\n).*?(<!-- end -->)"
        after = re.sub(marks, lambda m: m[1] + text + "\n" + m[2], before, flags=re.S)
        files.write_text(document, after)
    print(text, flush=True)


def page(name: str, root=ROOT) -> Path:
    """Returns the page of a table's paper, by which its name begins."""
    return root / "docs" / "reproduction" / f"{name.partition('_')[0]}.md"


def _position(table: Table):
    rows = list(table.rows)
    return lambda run: (rows.index(run[0]) if run[0] in rows else len(rows), run[1])


def markdown(table: Table, entries: list[dict]) -> str:
    """The table as Markdown; mean and sample deviation where there are seeds."""
    head = (*_HEAD[:_BEHIND], *table.columns, *_HEAD[_BEHIND:])
    lines = [_line(head), _line(["---"] + ["--:"] * (len(head) - 3) + ["---"] * 2)]
    for name, row in table.rows.items():
        of_row = [e for e in entries if e["row"] == name]
        of_row = [e for e in of_row if "stale" not in e] or of_row
        settings = [f"`{row.config.removeprefix('configs/')}`"]
        settings += [f"`{key}={value}`" for key, value in row.overrides.items()]
        cells = _cells(of_row, table.best, table.columns)
        lines.append(_line([" ".join(settings), row.paper or "-", *cells]))
    return "\n".join(lines)


def _cells(entries: list[dict], best: bool, columns) -> list[str]:
    """The measured cells of a row."""
    if not entries:
        return ["-"] * (len(_HEAD) - 2 + len(columns))

    def mean(key, digits):
        return f"{statistics.fmean(e[key] for e in entries):.{digits}f}"

    seeds = [str(e["seed"]) for e in entries]
    dates = sorted({e["date"] for e in entries})
    commits = dict.fromkeys(e["commit"] or "-" for e in entries)
    return [
        _accuracy(entries, best),
        ", ".join(seeds),
        mean("density", 3),
        *(mean(c, 3) if c in entries[0] else "-" for c in columns),
        mean("gbit", 2),
        mean("flops_share", 3),
        mean("minutes", 0),
        dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}",
        ", ".join(commits),
    ]


def _accuracy(entries: list[dict], best: bool) -> str:
    """Final accuracy of the headline model, and of others behind it by name.

    Where the best round counts, that of the headline model with the final one behind.
    """
    headline, *others = entries[0]["accuracy"]
    behind = [f"{name} {_spread(entries, name, 'final')}" for name in others]
    if best:
        behind = [f"final {_spread(entries, headline, 'final')}"]
    behind += dict.fromkeys(e["stale"] for e in entries if "stale" in e)
    shown = _spread(entries, headline, "best" if best else "final")
    return shown + (f" ({', '.join(behind)})" if behind else "")


def _spread(entries: list[dict], name: str, which: str) -> str:
    """Mean and, over several seeds, sample deviation of a model's accuracy, in %."""
    values = [100 * e["accuracy"][name][which] for e in entries]
    text = f"{statistics.fmean(values):.2f}"
    return text + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")


def _line(cells) -> str:
    return f"| {' | '.join(cells)} |"


def listing(table: Table, name: str, root=ROOT, only=None, seeds=None) -> str:
    """A line for each run in order: done, begun or missing."""
    done, lines = measured(name, root), []
    for row, seed in wanted(table, only, seeds):
        begun = root / "runs" / "tables" / name / f"{row}_seed{seed}" / "config.json"
        state = "done" if (row, seed) in done else "begun" if begun.exists() else "-"
        finished = state == "done"
        accuracy = _accuracy([done[row, seed]], table.best) if finished else ""
        lines.append(f"{row:16} seed {seed}  {state:5}  {accuracy}".rstrip())
    return "\n".join(lines)


def main() -> None:
    """Parses the command line; exits 2 on a refusal, with a signal's code on it."""
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
    except FloatingPointError as error:
        sys.exit(f"error: {error}")
    except (ValueError, OSError) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
