"""Tunes and runs methods by the rules of `rules.py`; writes benchmarks/results/v2/.

python -m benchmarks.v2.run fashion --tune               # the tries of all methods
python -m benchmarks.v2.run fashion                      # their runs
python -m benchmarks.v2.run fashion spdst jmwst          # those of some
python -m benchmarks.v2.run fashion --entry=my_entry.py  # of a file with METHODS

What the results hold is not run again, so that a stopped command goes on where it was;
commit the results. Of a workload, `_tries.csv` has the settings that were tried,
`_settings.json` those that were chosen, `_runs.csv` the runs with these, and
`_evaluations.csv` their evaluations.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import runpy
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.v2 import outcome, rules
from benchmarks.v2.rules import Method
from sparsefl_jax.core.check import check
from sparsefl_jax.report import costs
from sparsefl_jax.report.load import read_run
from sparsefl_jax.runs import experiment, fit_rounds
from sparsefl_jax.system import files, hardware, provenance

RESULTS = Path(__file__).parents[1] / "results/v2"
COSTS = ["rounds", "gbit", "gbit_up", "gbit_values", "pflop"]
EVALUATIONS = ["method", "seed", *COSTS, "accuracy", "validation", "alive"]
ENDED = ["rounds", "gbit", "diverged", "seconds", "pilot_seconds", "commit"]
RUNS = ["method", "density", "seed", *ENDED, "data", "rules"]
TRIES = ["method", "share", "seed", "settings", "score", *ENDED, "rules"]
TEXTS = dict.fromkeys(("commit", "data", "rules", "settings"), str)


def read(workload: str, kind: str, columns: Sequence[str]) -> pd.DataFrame:
    """Reads a table of a workload, which is empty if there is none yet."""
    path = RESULTS / f"{workload}_{kind}.csv"
    if not path.exists():
        return pd.DataFrame(columns=columns)
    return pd.read_csv(path, dtype=TEXTS)[columns]


def write(workload: str, kind: str, rows: pd.DataFrame) -> None:
    """Writes a table of a workload."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = rows.to_csv(index=False, float_format="%.6g")
    files.write_text(RESULTS / f"{workload}_{kind}.csv", text)


def read_settings(workload: str) -> dict[str, dict]:
    """Reads the settings that tuning has chosen, by method."""
    path = RESULTS / f"{workload}_settings.json"
    return json.loads(path.read_text()) if path.exists() else {}


def play(config) -> tuple[dict, pd.DataFrame]:
    """Runs a configuration with the rounds that its budget pays for.

    Returns:
      The fields `ENDED` and `data` of its row, and its evaluations. A run that diverges
      has those up to there, and a last one without values.
    """
    begin, piloted, path = time.perf_counter(), None, None
    row = {"diverged": False, "commit": provenance.commit()}
    with tempfile.TemporaryDirectory() as folder:
        try:
            config, _ = fit_rounds.fit(config, experiment.build)
            piloted = time.perf_counter()
            path = Path(folder, "run")
            summary = experiment.run(config, path, progress=False)
            row["data"] = f"{zlib.crc32(json.dumps(summary['data']).encode()):08x}"
        except FloatingPointError:
            row["diverged"] = True
        known = path is not None and (path / "metrics.jsonl").exists()
        evals = evaluated(read_run(path)) if known else pd.DataFrame()
    now = time.perf_counter()
    row["pilot_seconds"] = (piloted or now) - begin
    row["seconds"] = now - (piloted or now)
    if len(evals):
        row |= {name: evals[name].iloc[-1] for name in ("rounds", "gbit")}
    if row["diverged"]:
        evals = pd.concat([evals, pd.DataFrame([dict.fromkeys(EVALUATIONS[2:])])])
    return row, evals.reindex(columns=EVALUATIONS[2:])


def _configured(*arguments, **options) -> tuple[dict, pd.DataFrame]:
    """Plays a configuration by the rules; references in it do not reach a process."""
    return play(rules.configuration(*arguments, **options))


def evaluated(run) -> pd.DataFrame:
    """Returns costs and accuracies at the evaluations of a run's last stage."""
    final = {run.done(record): record for record in costs.final_evals(run)}
    models = [next(iter(record["models"].values())) for record in final.values()]
    return (
        costs.progress(run)
        .reindex(index=list(final), columns=COSTS)
        .assign(
            accuracy=[costs.accuracy(record) for record in final.values()],
            validation=[record["val_accuracy"] for record in final.values()],
            alive=[model["density"] for model in models],
        )
    )


def _begin(cores) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {cores.get()})  # one core for each process
    hardware.use_cpu_cores(1)
    hardware.keep_compilations()


def played(asked: Mapping[Any, Sequence]) -> Iterator[tuple]:
    """Runs configurations, one on each core; yields key, row and evaluations.

    Args:
      asked: the arguments of `rules.configuration` by any key; the last is a dict of
        those by keyword.
    """
    if not asked:
        return
    apart, numbers = multiprocessing.get_context("spawn"), hardware.cores()
    cores = apart.Queue()
    for number in numbers:
        cores.put(number)
    with concurrent.futures.ProcessPoolExecutor(
        len(numbers), apart, _begin, (cores,)
    ) as pool:
        jobs = {
            pool.submit(_configured, *arguments, **options): key
            for key, (*arguments, options) in asked.items()
        }
        try:
            for job in concurrent.futures.as_completed(jobs):
                yield jobs[job], *job.result()
        finally:
            pool.shutdown(cancel_futures=True)


def tune(workload: str, name: str, method: Method) -> dict:
    """Returns the settings that a method's tries choose; runs the missing ones.

    The score of a try is the primary outcome on the validation samples, within its
    share of the budget.

    Raises:
      ValueError: there are no settings on the workload that it is tuned on.
    """
    task = rules.WORKLOADS[workload]
    share = rules.first_share(workload, method)
    if task.tuned_on:
        known, like = read_settings(task.tuned_on), method.like or name
        check(f"the method tuned on {task.tuned_on}", like, known)
        wanted, own = rules.rates_again(method, known[like]), {}
    else:
        wanted, own = rules.tries(method), method.own
    first = [rules.FIRST_SEED]
    ranked = _ranked(workload, name, method, wanted, share, first)
    if further := rules.beyond(ranked[0], wanted, own):
        wanted = [*wanted, *further]
        ranked = _ranked(workload, name, method, wanted, share, first)
    if not task.tuning_seeds:
        return ranked[0]
    best = ranked[: rules.BEST]
    if method.across:  # the best of each value
        by_value = {str(each[method.across]): each for each in reversed(ranked)}
        best = list(by_value.values())
    return _ranked(workload, name, method, best, 1.0, task.tuning_seeds)[0]


def _ranked(workload, name, method, wanted, share, seeds) -> list[dict]:
    """Returns settings by their mean scores, the best first; runs the missing ones."""
    wanted = {json.dumps(settings): settings for settings in wanted}
    rows = read(workload, "tries", TRIES)
    own = rows[(rows["method"] == name) & (rows["share"] == share)]
    checksum = rules.checksum(workload, method, {})
    _refuse_others(name, own, checksum)
    done = set(zip(own["settings"], own["seed"], strict=True))
    asked = {
        (text, seed): (workload, name, method, settings, {"seed": seed, "share": share})
        for text, settings in wanted.items()
        for seed in seeds
        if (text, seed) not in done
    }
    budgets = rules.budgets(share * rules.WORKLOADS[workload].gbit)
    for (text, seed), row, evals in played(asked):
        score = outcome.score(outcome.reached(evals, budgets, "validation"))
        row |= {"method": name, "share": share, "seed": seed, "settings": text}
        row |= {"score": score, "rules": checksum}
        rows = read(workload, "tries", TRIES)
        rows = pd.concat([rows, pd.DataFrame([row]).reindex(columns=TRIES)])
        write(workload, "tries", rows)
        print(f"{name} share {share:g} seed {seed} {text}: {score:.4f}", flush=True)
    rows = read(workload, "tries", TRIES)
    own = rows[(rows["method"] == name) & (rows["share"] == share)]
    own = own[own["seed"].isin(seeds)].groupby("settings")["score"].mean()
    order = own.reindex([*wanted]).sort_values(ascending=False, kind="stable")
    return [json.loads(text) for text in order.index]


def _refuse_others(name: str, rows: pd.DataFrame, checksum: str) -> None:
    """Refuses to go on with rows that have been run by other rules or settings."""
    if others := set(rows["rules"]) - {checksum}:
        raise ValueError(f"{name} has rows by other rules, {others}: {checksum}")


def evaluate(workload: str, methods: Mapping[str, Method]) -> None:
    """Runs methods with their settings on all seeds, and writes a row for each run.

    Raises:
      ValueError: a method has no settings, or rows of other rules or settings; or a
          seed's samples differ from those of the records.
    """
    settings, task = read_settings(workload), rules.WORKLOADS[workload]
    runs = read(workload, "runs", RUNS)
    sums = {}
    for name, method in methods.items():
        check("the method tuned by --tune", name, settings)
        sums[name] = rules.checksum(workload, method, settings[name])
        _refuse_others(name, runs[runs["method"] == name], sums[name])
    done = set(zip(runs["method"], runs["seed"], strict=True))
    asked = {
        (name, seed): (workload, name, method, settings[name], {"seed": seed})
        for name, method in methods.items()
        for seed in task.seeds
        if (name, seed) not in done
    }
    for (name, seed), row, evals in played(asked):
        runs = read(workload, "runs", RUNS)
        known = set(runs[runs["seed"] == seed]["data"].dropna())
        if not row["diverged"] and known - {row["data"]}:
            raise ValueError(
                f"{workload} has samples with the checksum {row['data']} on seed "
                f"{seed}, expected {known.pop()} as in the records"
            )
        row |= {"method": name, "density": methods[name].density, "seed": seed}
        row["rules"] = sums[name]
        evals = evals.assign(method=name, seed=seed)[EVALUATIONS]
        old = read(workload, "evaluations", EVALUATIONS)
        old = old[(old["method"] != name) | (old["seed"] != seed)]
        write(workload, "evaluations", pd.concat([old, evals]))
        runs = pd.concat([runs, pd.DataFrame([row]).reindex(columns=RUNS)])
        write(workload, "runs", runs)
        print(f"{name} seed {seed} has run, {row['seconds']:.0f} s", flush=True)


def chosen(
    workload: str, names: Sequence[str], entry: Mapping[str, Method] | None = None
) -> dict[str, Method]:
    """Returns the methods that a command asks for, by name.

    Args:
      workload: a name in `rules.WORKLOADS`.
      names: of methods; by default all that are run on this workload.
      entry: further methods, instead of those of the benchmark.

    Raises:
      ValueError: there is no such method, or an entry's name is taken.

    Example:
      >>> list(chosen("fashion", ["pdst", "stc"]))
      ['pdst', 'stc']
    """
    ours = known = rules.METHODS[workload]
    if entry is not None:
        known = entry
        if taken := known.keys() & ours.keys():
            raise ValueError(f"--entry has {sorted(taken)}, expected new names")
    for name in names:
        check("method", name, known)
    return {name: known[name] for name in names or known}


def main() -> None:
    """Reads the command line, see above."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", choices=rules.WORKLOADS)
    parser.add_argument("methods", nargs="*", help="by default all")
    parser.add_argument("--entry", help="a Python file with METHODS")
    parser.add_argument("--tune", action="store_true", help="choose settings")
    args = parser.parse_intermixed_args()
    entry = None
    if args.entry:
        if not Path(args.entry).is_file():
            sys.exit(f"error: --entry={args.entry}: there is no such file")
        entry = runpy.run_path(args.entry).get("METHODS", {})
    try:
        methods = chosen(args.workload, args.methods, entry)
        if not args.tune:
            evaluate(args.workload, methods)
            return
        for name, method in methods.items():
            found = {name: tune(args.workload, name, method)}
            text = json.dumps(read_settings(args.workload) | found, indent=1)
            files.write_text(RESULTS / f"{args.workload}_settings.json", text + "\n")
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
