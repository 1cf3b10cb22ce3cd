"""Compares programs of a round on an accelerator.

    python -m benchmarks programs --target v5e:1x1            # estimated by a compiler
    python -m benchmarks programs                             # timed on a device here
    python -m benchmarks programs --only pfl resnet18_100 --write

The programs are rounds of FedAvg in set-ups from published work, with every form of the
convolutions under vmap over clients (`plain`, `canonical`, `patches`), and with one
client after another (`in turn`, plain). With `--target` nothing runs: the milliseconds
are the compiler's estimate, which exists for TPUs and not for GPUs. `--write` stores
them in `benchmarks/results/programs.json`, the record behind the form and the chunk of
runs on this platform, see `models.convolution`. An estimate does not replace a
measurement.
"""

import datetime
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import jax

import sparsefl_jax as sfl
from benchmarks import accelerators, measure, targets, workload
from sparsefl_jax.models import convolution
from sparsefl_jax.simulation import initial_state
from sparsefl_jax.system import provenance
from sparsefl_jax.wire import ledger

TABLE = Path(__file__).parent / "results/programs.json"
FORMS = ("plain", "canonical", "patches")  # of all layers, under vmap over clients
IN_TURN = "in turn"  # one client after another, in the form `plain`
NAMES = ("pfl", "resnet18_100", "femnist", "lenet5_caffe", "conv4", "mlp")
CHOICES = {"only": workload.SETUPS}


def run(only=NAMES, target="", repeats=5, write=False) -> Iterator[dict]:
    """Yields a row for each program of each set-up.

    Args:
      only: set-ups.
      target: an accelerator to compile for, such as v5e:1x1.
      repeats: rounds to time.
      write: whether to keep the milliseconds.
    """
    if target:
        there, by = accelerators.make(target), "estimate"
        device, measured = there.devices[0], lambda *parts: estimated(*parts, there)
    else:
        device, by = jax.devices()[0], "clock"
        measured = lambda *parts: timed(*parts, repeats)  # noqa: E731
    if write and device.platform == "cpu":
        sys.exit("error: --write is for accelerators")
    about = {
        "device": device.device_kind,
        "compiler": targets.compiler(device.platform),
        "jax": jax.__version__,
        "commit": provenance.commit(),
        "date": datetime.date.today().isoformat(),
    }
    for name in only:
        setup = workload.SETUPS[name]
        setup = setup._replace(cohort=setup.cohort or targets.COHORT, method=sfl.fedavg)
        rows, rounds = compare(setup, measured)
        yield from ({"set-up": name} | row for row in rows)
        if write and not any(map(math.isnan, rounds["ms"].values())):
            keep(device.platform, by, {name: rounds | about})


def variants(setup: workload.Workload) -> dict[str, tuple[str, int]]:
    """Returns the form of convolutions and the chunk of each program by its name."""
    names = ("plain",) if setup.model == "mlp" else FORMS
    return {f: (f, setup.drawn) for f in names} | {IN_TURN: ("plain", 1)}


def estimated(setup, data, model, chunk: int, target: accelerators.Target) -> dict:
    """Returns what the compiler of a target estimates for one program."""
    stage, begun = workload.make_stage(setup, model, 1), time.perf_counter()
    (one,) = targets.compile_for(target, [stage], model, data, chunk=chunk)
    return {
        "ms a round": math.nan if one.seconds is None else 1e3 * one.seconds,
        "peak MB": one.memory["peak"] / 1e6,
        "GB a step": one.step.bytes / 1e9,
        "compile s": time.perf_counter() - begun,
    }


def timed(setup, data, model, chunk: int, repeats: int) -> dict:
    """Returns the best of some rounds of one program on the first device here."""
    one = workload.prepare(setup._replace(devices=1), chunk, model, data)
    seconds = measure.in_turns({"": workload.going(one)}, repeats)[""]
    return {
        "ms a round": 1e3 * float(seconds.min()),
        "peak MB": sum(one.bytes.values()) / 1e6,
        "GB a step": math.nan,
        "compile s": one.compile_seconds,
    }


def compare(setup: workload.Workload, measured: Callable) -> tuple[list, dict]:
    """Runs all programs of a set-up, and leaves out those that fail.

    Returns:
      The rows of all programs, and what the table keeps of the set-up.
    """
    data, rows = workload.make_data(setup), []
    model = workload.make_model(setup, data)
    for program, (form, chunk) in variants(setup).items():
        try:
            same = convolution.Lowering(form, form, form)
            with mock.patch.object(convolution, "choose", return_value=same):
                found = measured(setup, data, model, chunk)
            rows.append({"program": program} | found)
        except Exception as error:  # memory, or the compiler
            print(f"{program} failed: {' '.join(str(error).split())[:200]}")
    params = initial_state.initial_shapes(model).params
    return rows, {
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        "macs": ledger.macs_per_sample(model) * setup.batch,
        "ms": {row["program"]: round(row["ms a round"], 2) for row in rows},
    }


def keep(platform: str, by: str, rounds: dict) -> None:
    """Adds rounds to a platform's table; timed ones replace estimates."""
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
