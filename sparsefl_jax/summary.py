"""What a run came to: `summary.json`, and the means over several seeds."""

import statistics
import subprocess
from pathlib import Path

import jax

from sparsefl_jax import checkpoint
from sparsefl_jax.loop import Best


def summarize(config, metrics: list[dict], best: Best | None, about: dict) -> dict:
    """Totals per stage, accuracy per deployed model; keys as in `report.table`.

    Args:
      config: the configuration.
      metrics: all records.
      best: the best models.
      about: what the host adds: `seconds`, `commit`, `ended_by`.
    """
    train = [r for r in metrics if r["phase"] == "train"]
    evals = [r for r in metrics if r["phase"] == "eval"]
    evals = [r for r in evals if r["stage"] == evals[-1]["stage"]]
    names = [config.first_stage["name"]] if config.first_stage else []
    names = [*names, config.algorithm.name][: metrics[-1]["stage"] + 1]
    return {
        "method": config.algorithm.name,
        "model": config.model.name,
        "dataset": config.dataset,
        "partition": config.partition.name,
        "seed": config.seed,
        "rounds": len(train),
        "stages": [
            {"name": name} | _totals([r for r in train if r["stage"] == index])
            for index, name in enumerate(names)
        ],
        "accuracy": _accuracy(evals),
        "client_accuracy": evals[-1]["client_accuracy"],
        "best": best and best._asdict() | {"models": sorted(best.models)},
        "density": train[-1]["density"],
        "rounds_per_second": len(train) / about["seconds"],
        "versions": {
            name: version
            for name, version in checkpoint.machine(config.chunk).items()
            if name in (*checkpoint.VERSIONS, "python")
        },
        "device": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "matmul_precision": jax.config.jax_default_matmul_precision or "default",
    } | about


def over_seeds(summaries: list[dict]) -> dict:
    """Mean and sample deviation of the runs that differ in their seed alone.

    Example:
      >>> runs = [{'seed': s, 'seconds': 1.0, 'accuracy': {'global': {
      ...     'final': 0.5 + s / 10, 'best': 0.8, 'density': 1.0}}} for s in (0, 1, 2)]
      >>> both = over_seeds(runs)
      >>> both['seeds'], round(both['accuracy']['global']['final_std'], 6)
      ([0, 1, 2], 0.1)
    """
    first, accuracy = summaries[0], {}
    for name in first["accuracy"]:
        of_seeds = [summary["accuracy"][name] for summary in summaries]
        accuracy[name] = {"density": statistics.fmean(a["density"] for a in of_seeds)}
        for key in ("final", "best"):
            values = [a[key] for a in of_seeds]
            accuracy[name][key] = statistics.fmean(values)
            accuracy[name][f"{key}_std"] = statistics.stdev(values)
    shared = ("method", "model", "dataset", "partition", "versions", "device")
    return {key: first[key] for key in shared if key in first} | {
        "seeds": [summary["seed"] for summary in summaries],
        "accuracy": accuracy,
        "seconds": sum(summary["seconds"] for summary in summaries),
    }


def _accuracy(evals: list[dict]) -> dict:
    accuracy = {}
    for name, result in evals[-1]["models"].items():
        best = max(evals, key=lambda r, name=name: r["models"][name]["accuracy"])
        accuracy[name] = {
            "final": result["accuracy"],
            "best": best["models"][name]["accuracy"],
            "best_round": best["round"],
            "density": result["density"],
        }
    return accuracy


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


def commit() -> str:
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
