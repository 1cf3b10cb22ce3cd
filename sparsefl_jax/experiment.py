"""A run with files: metrics, timing, summary, plots, a table.

The files are described in the README.
"""

import contextlib
import importlib.metadata
import json
import platform
import subprocess
import time
from pathlib import Path

import jax
import numpy as np

from sparsefl_jax import configuration, local, loop, report
from sparsefl_jax import data as datasets
from sparsefl_jax.progress import Progress

VERSIONS = ("jax", "jaxlib", "flax", "optax", "numpy")


def run(config, workdir, *, progress: bool = True) -> dict:
    """Runs a configuration and writes its files to `workdir`.

    Args:
      config: as `configuration.default_config` makes it.
      workdir: a directory that holds no run yet; created if absent.
      progress: whether to show a progress bar, or lines where there is no terminal.

    Returns:
      The summary, as `summary.json` has it.

    Raises:
      ValueError: in one line, before any compilation, on what can not be run.
    """
    workdir = Path(workdir)
    if (workdir / "metrics.jsonl").exists():
        raise ValueError(
            f"workdir={str(workdir)!r} holds a run already, expected an empty one"
        )
    data = configuration.build_data(config)
    model = configuration.build_model(config, data)
    budgets = configuration.build_budgets(config)
    loss_fn = local.cross_entropy(model)
    stages = configuration.build_stages(config, loss_fn, budgets)
    loop.check(stages, model, data, config.eval_every, config.chunk)
    workdir.mkdir(parents=True, exist_ok=True)
    (workdir / "config.json").write_text(config.to_json_best_effort(indent=2))
    np.save(workdir / "partition.npy", datasets.partition_counts(data))

    commit, begin = _commit(), time.perf_counter()  # of the code that is loaded
    total = sum(stage.num_rounds for stage in stages)
    with writer(workdir) as write, Progress(total, show=progress) as bar:

        def callback(records):
            write(records, time.perf_counter() - begin)
            bar.update(records)

        result = loop.run(
            jax.random.key(config.seed),
            stages,
            model,
            data,
            callback=callback,
            eval_every=config.eval_every,
            chunk=config.chunk,
            budgets=budgets,
        )
    seconds = time.perf_counter() - begin
    summary = summarize(config, stages, result.metrics, seconds) | {"commit": commit}
    (workdir / "summary.json").write_text(json.dumps(summary, indent=2))
    report.plot_run(workdir)
    return summary


@contextlib.contextmanager
def writer(workdir: Path):
    """Gives `write(records, seconds)`: appends to `metrics.jsonl`, `timing.jsonl`."""
    with (
        open(workdir / "metrics.jsonl", "w") as metrics,
        open(workdir / "timing.jsonl", "w") as timing,
    ):
        last = 0.0

        def write(records: list[dict], seconds: float) -> None:
            nonlocal last
            rounds = sum(record["phase"] == "train" for record in records)
            line = {
                "stage": records[-1]["stage"],
                "round": records[-1]["round"],
                "seconds": seconds,
                "rounds_per_second": rounds / (seconds - last),
            }
            last = seconds
            metrics.writelines(json.dumps(record) + "\n" for record in records)
            timing.write(json.dumps(line) + "\n")
            metrics.flush()
            timing.flush()

        yield write


def summarize(config, stages, metrics: list[dict], seconds: float) -> dict:
    """What `summary.json` holds; totals per stage, accuracy per deployed model."""
    train = [r for r in metrics if r["phase"] == "train"]
    last_stage = len(stages) - 1
    evals = [r for r in metrics if r["phase"] == "eval" and r["stage"] == last_stage]
    final = evals[-1]
    accuracy = {}
    for name, result in final["models"].items():
        best = max(evals, key=lambda r, name=name: r["models"][name]["accuracy"])
        accuracy[name] = {
            "final": result["accuracy"],
            "best": best["models"][name]["accuracy"],
            "best_round": best["round"],
            "density": result["density"],
        }
    names = [config.first_stage["name"]] if len(stages) > 1 else []
    return {
        "method": config.algorithm.name,
        "model": config.model.name,
        "dataset": config.dataset,
        "partition": config.partition.name,
        "seed": config.seed,
        "rounds": len(train),
        "stages": [
            {"name": name} | _totals([r for r in train if r["stage"] == index])
            for index, name in enumerate([*names, config.algorithm.name])
        ],
        "accuracy": accuracy,
        "client_accuracy": final["client_accuracy"],
        "density": train[-1]["density"],
        "seconds": seconds,
        "rounds_per_second": len(train) / seconds,
        "versions": {name: importlib.metadata.version(name) for name in VERSIONS}
        | {"python": platform.python_version()},
        "device": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "matmul_precision": jax.config.jax_default_matmul_precision or "default",
    }


def _totals(records: list[dict]) -> dict:
    def total(key):
        return sum(r[key] for r in records)

    return {
        "rounds": len(records),
        "bits_up": total("bits_up"),
        "bits_down": total("bits_down"),
        "bits_values": total("bits_up_values") + total("bits_down_values"),
        "bits_positions": total("bits_up_positions") + total("bits_down_positions"),
        "flops": total("flops"),
        "flops_dense": total("flops_dense"),
        "flops_executed": total("flops_executed"),
    }


def _commit() -> str:
    """The commit of the checkout that runs, marked where files differ, '' outside."""

    def git(*arguments):
        where = Path(__file__).parent
        done = subprocess.run(["git", *arguments], cwd=where, capture_output=True)
        return done.stdout.decode().strip()

    try:
        ours = git("ls-files", Path(__file__).name)
        return git("describe", "--always", "--dirty", "--exclude=*") if ours else ""
    except OSError:
        return ""
