"""Tunes and runs methods by the rules of `rules.py`; writes benchmarks/results/v1/.

python -m benchmarks.v1.run fashion                      # all methods of a workload
python -m benchmarks.v1.run fashion spdst jmwst
python -m benchmarks.v1.run fashion --entry=my_entry.py  # a file with METHODS
python -m benchmarks.v1.run fashion --finetune fedavg    # a common model made personal

What the results hold is not run again, so that a stopped command goes on where it was;
commit the results. `WORKLOAD.csv` has the evaluations of all runs,
`WORKLOAD_tries.csv` the settings that were tried.
"""

import argparse
import itertools
import json
import re
import runpy
import sys
import traceback
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from benchmarks.v1 import rules
from benchmarks.v1.rules import Method
from sparsefl_jax.core import users_code
from sparsefl_jax.core.validate import one_of
from sparsefl_jax.report.comparison import costs, evaluations, study_folder
from sparsefl_jax.report.load import Run, read_run
from sparsefl_jax.studies import points as on_disk
from sparsefl_jax.studies import runner
from sparsefl_jax.studies.points import Point
from sparsefl_jax.system import files, hardware

RESULTS = Path(__file__).parents[1] / "results/v1"
COSTS = ["rounds", "gbit", "gbit_up", "gbit_values", "pflop", "hours"]
RECORDS = ["method", "personal", "density", "seed", *COSTS]
RECORDS += ["accuracy", "clients", "alive", "seconds", "commit", "data"]
JOBS = 2  # runs at a time
TRIES = ["method", "share", "seed", "settings", "score", "rounds", "seconds"]


class Task(NamedTuple):
    """A method on a workload, and where its runs are."""

    workload: str
    name: str
    method: Method
    workdir: Path


def read_records(workload: str) -> pd.DataFrame:
    """Reads the evaluations of a workload's runs; one that diverged has no costs."""
    return _read(workload, RECORDS)


def read_tries(workload: str) -> pd.DataFrame:
    """Reads the tries of a workload; one that diverged has no score."""
    return _read(f"{workload}_tries", TRIES)


def _read(name: str, columns: list[str]) -> pd.DataFrame:
    path = RESULTS / f"{name}.csv"
    if not path.exists():
        return pd.DataFrame(columns=columns)
    return pd.read_csv(path, dtype=dict.fromkeys(("commit", "data", "settings"), str))


def _write(rows: pd.DataFrame, name: str) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = rows.to_csv(index=False, float_format="%.6g")
    files.write_text(RESULTS / f"{name}.csv", text)


def best(tries: pd.DataFrame, name: str) -> dict:
    """Returns a method's settings with the best score at the largest share.

    Raises:
      ValueError: there are none.

    Example:
      >>> rows = [("fedavg", 0.25, '{"a": 1}', 0.9), ("fedavg", 1.0, '{"a": 2}', 0.8)]
      >>> columns = ["method", "share", "settings", "score"]
      >>> best(pd.DataFrame(rows, columns=columns), "fedavg")
      {'a': 2}
    """
    tries = tries[tries["method"] == name]
    found = _ranked(tries[tries["share"] == tries["share"].max()])
    if not found:
        raise ValueError(f"{name} has no settings, expected tries that have ended")
    return found[0]


def _ranked(tries: pd.DataFrame) -> list[dict]:
    """Returns the settings of tries that have not diverged, the best first."""
    tries = tries.dropna(subset="score")
    tries = tries.sort_values("score", ascending=False, kind="stable")
    return [json.loads(text) for text in tries["settings"]]


def tune(task: Task) -> dict:
    """Returns the settings that a method's tries choose; runs the missing ones.

    The score of a try is the validation accuracy of its last model; one that diverges
    has none.

    Raises:
      ValueError: all tries have diverged, or what a workload is tuned on is missing.
    """
    workload, name, method, _ = task
    rule = rules.WORKLOADS[workload]
    elsewhere = rule.tuned_on
    if elsewhere and name not in rules.METHODS[elsewhere] | _tuned(elsewhere):
        rule = rule._replace(tuned_on="", tries=rules.WORKLOADS[elsewhere].tries)
    if not rule.tries:
        return best(read_tries(rule.tuned_on), name)
    wanted = rules.tries(method, rule.tries)
    if method.common:
        kept = best(read_tries(workload), method.common)
        values = itertools.product(*method.own.values())
        wanted = [kept | dict(zip(method.own, each, strict=True)) for each in values]
    elif rule.tuned_on:
        kept = best(read_tries(rule.tuned_on), name)
        wanted = [kept | {rules.RATE: each[rules.RATE]} for each in wanted]
    rows = _tried(task, wanted, rules.QUARTER)
    if not rule.tuned_on:
        ranked = _ranked(rows)
        for at in range(0, len(ranked), 2):  # the next two if these diverge
            again = ranked[at : at + 2]
            if not method.common:
                again += rules.beyond(again[0], method, rule.tries)
            if _tried(task, again, 1.0)["score"].notna().any():
                break
    return best(read_tries(workload), name)


def _tuned(workload: str) -> dict:
    return dict.fromkeys(read_tries(workload)["method"])


def _tried(task: Task, wanted: list[dict], share: float) -> pd.DataFrame:
    """Returns the rows of tries; runs those that the results lack."""
    seed = rules.TUNING_SEEDS[share == 1.0]
    rows = read_tries(task.workload)
    here = rows[(rows["method"] == task.name) & (rows["share"] == share)]
    texts = [json.dumps(settings) for settings in wanted]
    missing = [n for n, text in enumerate(texts) if text not in set(here["settings"])]
    density = rules.TUNING_DENSITY if task.method.density else None
    runs = _run(
        task,
        {
            f"share-{share:g}-{zlib.crc32(texts[n].encode()):08x}": _config(
                task, wanted[n], seed=seed, density=density, share=share
            )
            for n in missing
        },
    )
    for number, by_seed in zip(missing, runs, strict=True):
        row = {"method": task.name, "share": share, "seed": seed}
        row["settings"] = texts[number]
        if run := by_seed[seed]:
            last = evaluations.last_eval(run)
            row |= {"score": last["val_accuracy"], "rounds": run.done(last)}
            row |= {"seconds": run.summary["seconds"]}
        rows = pd.concat([rows, pd.DataFrame([row])], ignore_index=True)
        _write(rows[TRIES], f"{task.workload}_tries")
    here = rows[(rows["method"] == task.name) & (rows["share"] == share)]
    return here[here["settings"].isin(texts)]


def _config(task: Task, settings: dict, **arguments):
    """Returns a configuration; a common model leaves a share for the last round."""
    if task.method.common:
        rows = read_records(task.workload)
        density = arguments.get("density") or 1.0
        common = rows[rows["method"] == task.method.common]
        rounds = common[common["density"] == density]["rounds"].max()
        share = arguments.get("share", 1.0)
        settings = settings | {"finetune.rounds": int(rules.LAST * share * rounds) or 1}
    return rules.configuration(*task[:3], settings, **arguments)


def _run(task: Task, configs: dict) -> list[dict[int, Run | None]]:
    """Runs configurations by name; returns the runs by seed.

    None stands for one that diverged, or whose budget does not pay for a round.

    Raises:
      ValueError: one failed otherwise, or was killed; the same command runs it again.
    """
    points = [Point(name, config) for name, config in configs.items()]
    if points:
        runner.run(points, task.workdir, jobs=min(JOBS, len(points)))
    found = []
    for point in points:
        note = on_disk.failure(task.workdir, point.name)
        reasons = note.read_text() if note.exists() else ""
        by_seed = {}
        for seed, folder in on_disk.folders(task.workdir, point):
            ended = (folder / "summary.json").exists()
            lost = rf"^(seed {seed}|the budget): .*(training loss|not finite|not pay)"
            if not ended and not re.search(lost, reasons, re.M):
                raise ValueError(f"{folder} has not ended; {reasons[:200]!r}")
            by_seed[seed] = read_run(folder) if ended else None
        found.append(by_seed)
    return found


def evaluate(task: Task, settings: dict) -> None:
    """Runs a method at its densities on all seeds, and writes their records.

    Raises:
      ValueError: a seed's samples differ from those of the records.
    """
    seeds = rules.WORKLOADS[task.workload].seeds
    rows = read_records(task.workload)
    done = set(rows[rows["method"] == task.name]["density"])
    missing = [
        density
        for density in (rules.DENSITIES if task.method.density else (1.0,))
        if density not in done
    ]
    part = -(-seeds // JOBS)  # of a point's seeds, which keeps all jobs busy
    parts = [range(seeds)[at : at + part] for at in range(0, seeds, part)]
    configs = {
        f"density-{density:g}-{own[0]}": _config(
            task,
            settings,
            density=density if density < 1 else None,
            seed=own[0],
            seeds=len(own),
        )
        for density in missing
        for own in parts
    }
    found = iter(_run(task, configs))
    for density in missing:
        runs = dict(itertools.chain(*(next(found).items() for _ in parts)))
        for seed, run in runs.items():
            new = records(run, task.method.model) if run else pd.DataFrame(index=[0])
            new = new.assign(method=task.name, density=density, seed=seed)
            new = new.assign(personal=task.method.personal)
            known = set(rows[rows["seed"] == seed]["data"].dropna())
            if run and known - set(new["data"]):
                raise ValueError(
                    f"{task.workload} has samples with the checksum "
                    f"{new['data'].iloc[0]} on seed {seed}, expected {known.pop()} as "
                    "in the records"
                )
            rows = pd.concat([rows, new], ignore_index=True)
        _write(rows[RECORDS], task.workload)


def records(run: Run, model: str = "") -> pd.DataFrame:
    """Returns costs and accuracies of a run's last stage, a row for each evaluation.

    Args:
      run: the records of the run.
      model: the deployed model whose accuracy counts; '' for the headline's.
    """
    final = {run.done(record): record for record in evaluations.final_evals(run)}
    clients = [record.get("client_accuracy", {}) for record in final.values()]
    models = [
        record["models"][model or next(iter(record["models"]))]
        for record in final.values()
    ]
    return (
        costs.progress(run)
        .reindex(index=list(final), columns=COSTS)
        .assign(
            accuracy=[
                evaluations.accuracy(each, model or None) for each in final.values()
            ],
            clients=[each.get("mean") for each in clients],
            alive=[each["density"] for each in models],
            seconds=run.summary["seconds"],
            commit=run.summary["commit"],
            data=f"{zlib.crc32(json.dumps(run.summary['data']).encode()):08x}",
        )
    )


def leaders(workload: str, count: int = 5) -> list[str]:
    """Returns the common methods with the best scores at the whole budget.

    FedAvg is none of them, nor are entries. Neither is `fedavg_pruned`, whose score is
    that of the dense model.

    Example:
      >>> leaders("unknown")
      []
    """
    rows = read_tries(workload)
    common = (rules.CORE | rules.OTHERS).keys() - {"fedavg", "fedavg_pruned"}
    rows = rows[(rows["share"] == 1.0) & rows["method"].isin(common)]
    scores = rows.groupby("method")["score"].max().dropna()
    return list(scores.sort_values(ascending=False).index[:count])


def chosen(
    workload: str,
    names: Sequence[str],
    entry: dict[str, Method] | None = None,
    finetune: Sequence[str] = (),
) -> dict[str, Method]:
    """Returns the methods that a command asks for, by name.

    Args:
      workload: a name in `rules.WORKLOADS`.
      names: of methods; by default all that are run on this workload.
      entry: further methods, instead of those of the benchmark.
      finetune: methods whose common model is made personal, instead of the others.

    Raises:
      ValueError: there is no such method, or an entry's name is taken or no folder's.

    Example:
      >>> list(chosen("fashion", ["pdst", "stc"]))
      ['pdst', 'stc']
    """
    ours = known = rules.METHODS[workload]
    if entry is not None:
        known = entry
        if taken := known.keys() & ours.keys():
            raise ValueError(f"--entry has {sorted(taken)}, expected new names")
        for name in known:
            study_folder.check(name, 1)
    for name in names:
        one_of("method", name, known)
    for name in finetune:
        one_of("--finetune", name, ours)
    if finetune:
        pairs = ((name, rules.finetuned(workload, name)) for name in finetune)
        return {f"{name}_finetuned": method for name, method in pairs}
    if not (rules.WORKLOADS[workload].tries or names or entry is not None):
        names = ["fedavg", *leaders(rules.WORKLOADS[workload].tuned_on)]
    return {name: known[name] for name in names or known}


def main() -> None:
    """Reads the command line, see above."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", choices=rules.WORKLOADS)
    parser.add_argument("methods", nargs="*", help="by default all")
    parser.add_argument("--entry", help="a Python file with METHODS")
    parser.add_argument("--finetune", nargs="*", default=(), metavar="METHOD")
    parser.add_argument("--workdir", type=Path, default="runs/benchmark")
    args = parser.parse_args()
    entry = None
    if args.entry:
        if not Path(args.entry).is_file():
            sys.exit(f"error: --entry={args.entry}: there is no such file")
        entry = runpy.run_path(args.entry).get("METHODS", {})
    try:
        methods = chosen(args.workload, args.methods, entry, args.finetune)
    except ValueError as error:
        sys.exit(f"error: {error}")
    hardware.use_cpu_cores()
    hardware.keep_compilations()
    failed = []
    for name, method in methods.items():
        task = Task(args.workload, name, method, args.workdir / args.workload / name)
        try:
            evaluate(task, tune(task))
        except ValueError as error:  # the other methods go on
            failed.append(name)
            if users_code.raised(error):
                traceback.print_exception(error)
            print(f"{name}: {error}", file=sys.stderr)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
