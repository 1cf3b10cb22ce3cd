"""Compares programs of a round on an accelerator; writes the table that chooses.

    python -m benchmarks.programs --target v5e:1x1            # by its compiler
    python -m benchmarks.programs                             # by the clock of one here
    python -m benchmarks.programs --only pfl resnet18_100 --write

A round of FedAvg, as published set-ups have it, with every form of the convolutions
under vmap over clients (`plain`, `canonical`, `patches`) and with one client after
another (`in turn`, plain). By a compiler nothing runs: the milliseconds are its
estimate, which a TPU's compiler gives and XLA:GPU does not. `--write` keeps them in
`sparsefl_jax/models/programs.json`, from which runs choose the form and the chunk on
this platform. What a clock has measured is not replaced by an estimate.
"""

import argparse
import datetime
import json
import math
import re
import time
from collections.abc import Callable
from pathlib import Path

import jax

import sparsefl_jax as sfl
from benchmarks import accelerators, measure, targets, workload
from sparsefl_jax.models import forms, programs
from sparsefl_jax.simulation import initial_state
from sparsefl_jax.system import provenance
from sparsefl_jax.wire import ledger

TABLE = Path(programs.__file__).with_name("programs.json")
NAMES = ("pfl", "resnet18_100", "femnist", "lenet5_caffe", "conv4", "mlp")
COHORT = 10  # where the set-up leaves it open
HEAD = ("set-up", "program", "ms a round", "peak MB", "GB a step", "compile s")


def variants(setup: workload.Workload) -> dict[str, tuple[str, int]]:
    """Returns the form of convolutions and the chunk of each program by its name."""
    names = ("plain",) if setup.model == "mlp" else programs.FORMS
    return {f: (f, setup.drawn) for f in names} | {programs.IN_TURN: ("plain", 1)}


def estimated(setup, data, model, chunk: int, target: accelerators.Target) -> dict:
    """Returns what the compiler of a target says of one program."""
    stage, begun = workload.make_stage(setup, model, 1), time.perf_counter()
    (one,) = targets.compile_for(target, [stage], model, data, chunk=chunk)
    return {
        "ms": math.nan if one.seconds is None else 1e3 * one.seconds,
        "peak_bytes": one.memory["peak"],
        "step_bytes": one.bytes,
        "compile_seconds": time.perf_counter() - begun,
    }


def timed(setup, data, model, chunk: int, repeats: int) -> dict:
    """Returns the best of some rounds of one program on the first device here."""
    one = workload.prepare(setup, chunk, model, data, jax.devices()[:1])
    return {
        "ms": 1e3 * float(workload.seconds(one, repeats).min()),
        "peak_bytes": sum(one.bytes.values()),
        "step_bytes": math.nan,
        "compile_seconds": one.compile_seconds,
    }


def compare(name: str, setup: workload.Workload, run: Callable) -> dict:
    """Runs all programs of a set-up; prints each, and leaves out what fails."""
    data, found = workload.make_data(setup), {}
    model = workload.make_model(setup, data)
    for program, (form, chunk) in variants(setup).items():
        try:
            with forms.using(form):
                found[program] = run(setup, data, model, chunk)
        except Exception as error:  # memory, or the compiler
            print(f"{name} {program} failed: {' '.join(str(error).split())[:200]}")
        else:
            print(f"| {' | '.join(row(name, program, found[program]))} |", flush=True)
    params = initial_state.initial_shapes(model).params
    return {
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        "macs": ledger.macs_per_sample(model.macs) * setup.batch,
        "ms": {program: round(one["ms"], 2) for program, one in found.items()},
    }


def row(name: str, program: str, one: dict) -> list[str]:
    figures = one["ms"], one["peak_bytes"] / 1e6, one["step_bytes"] / 1e9
    shown = ("-" if math.isnan(v) else f"{v:.3g}" for v in figures)
    return [name, program, *shown, f"{one['compile_seconds']:.0f}"]


def write(platform: str, by: str, rounds: dict) -> None:
    """Adds rounds to a platform's table; those of a clock take an estimate's place."""
    table = json.loads(TABLE.read_text())
    before = table.get(platform, {})
    if before.get("by") == "clock" and by == "estimate":
        raise SystemExit(f"{TABLE} has {platform} by the clock, which is kept")
    kept = before.get("rounds", {}) if before.get("by") == by else {}
    table[platform] = {"by": by, "rounds": kept | rounds}
    text = json.dumps(table, indent=1)
    # One line per set-up's milliseconds.
    text = re.sub(r'"ms": \{[^}]*\}', lambda m: " ".join(m[0].split()), text)
    TABLE.write_text(text + "\n")


def main():
    """Prints a table; keeps its milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=workload.SETUPS, default=NAMES)
    parser.add_argument("--target", help="an accelerator that is not there: v5e:1x1")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="keep the table")
    args = parser.parse_args()
    if args.target:
        target = accelerators.make(args.target)
        device, by = target.devices[0], "estimate"
        run = lambda *parts: estimated(*parts, target)  # noqa: E731
    else:
        device, by = jax.devices()[0], "clock"
        run = lambda *parts: timed(*parts, args.repeats)  # noqa: E731
    if args.write and device.platform == "cpu":
        parser.error("--write is for accelerators")
    about = {
        "device": device.device_kind,
        "compiler": targets.compiler(device.platform),
        "jax": jax.__version__,
        "commit": provenance.commit(),
        "date": datetime.date.today().isoformat(),
    }
    print(", ".join(f"{key} {value}" for key, value in (about | {"by": by}).items()))
    print(measure.markdown(HEAD, []))
    rounds = {}
    for name in args.only:
        setup = workload.SETUPS[name]
        setup = setup._replace(cohort=setup.cohort or COHORT, method=sfl.fedavg)
        rounds[name] = compare(name, setup, run)
        if args.write and not any(map(math.isnan, rounds[name]["ms"].values())):
            write(device.platform, by, {name: rounds[name] | about})


if __name__ == "__main__":
    main()
