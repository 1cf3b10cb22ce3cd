"""What a run came to: `summary.json`, and the means over several seeds."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np

from sparsefl_jax import report
from sparsefl_jax.data import partition_statistics
from sparsefl_jax.report import tiers
from sparsefl_jax.report.comparison import evaluations
from sparsefl_jax.runs.config import defaults
from sparsefl_jax.runs.simulate import Snapshot
from sparsefl_jax.system import files, hardware, provenance

# What is averaged over seeds where all have it.
_AVERAGED = ("client_accuracy", "clients", "hours", "tiers", "unheard")
# What runs that differ in their seed only have in common.
_SHARED = (
    *("method", "model", "dataset", "partition"),
    *("rounds", "metric", "versions", "device", "commit"),
)


def write(config, memory: Callable, folder: Path, at: Snapshot, about: dict) -> dict:
    """Writes the `summary.json` of a run that has ended.

    Args:
      config: the configuration.
      memory: gives that of a stage, as `Programs.memory` does.
      folder: the run's directory.
      at: where it ended.
      about: as its last checkpoint has it, and its `guarantee`, which may be empty.

    Returns:
      What it has written, with keys as in `report.table`.
    """
    metrics = report.read_records(folder / "metrics.jsonl")
    segments = report.read_lines(folder / "timing.jsonl")
    train = [r for r in metrics if r["phase"] == "train"]
    evals = [r for r in metrics if r["phase"] == "eval"]
    evals = [r for r in evals if r["stage"] == evals[-1]["stage"]]
    stages = [
        {"name": section["name"]}
        | _totals([r for r in train if r["stage"] == index])
        | {
            "chunk": memory(index).chunk,
            "memory": memory(index).parts(),
            "compile_seconds": sum(
                line["compile_seconds"] for line in segments if line["stage"] == index
            ),
        }
        for index, section in enumerate(defaults.stages(config)[: at.stage + 1])
    ]
    rounds, best = about["position"]["rounds"], at.best
    last = train[-1] if train else {}
    summary = {
        "method": config.algorithm["name"],
        "model": config.model["name"],
        "dataset": config.dataset,
        "partition": config.partition["name"],
        "seed": config.seed,
        "rounds": rounds,
        "stages": stages,
        "memory": {
            "estimated": max(sum(stage["memory"].values()) for stage in stages),
            **hardware.peak_memory(jax.devices()),
        },
        "accuracy": _accuracy(evals),
        "metric": evals[-1].get("metric") if evals else None,
        "client_accuracy": evals[-1]["client_accuracy"] if evals else {},
        "best": best and best._asdict() | {"models": sorted(best.models)},
        # Of personal models, or else of the server's.
        "density": last.get("client", {}).get("density", last.get("density")),
        **_clock(metrics, train, evals),
        "rounds_per_second": rounds / about["seconds"],
        "versions": provenance.versions(),
        "device": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "compute_dtype": config.model.get("dtype", "float32"),
        "settings": provenance.settings(),
        **{name: about.get(name) for name in ("seconds", "commit", "code", "data")},
        "ended_by": at.ended_by,
        "clients": partition_statistics(np.load(folder / "partition.npy")),
        # Records that are lost are in no total.
        **{name: about[name] for name in ("lost", "guarantee") if about.get(name)},
    }
    files.write_json(folder / "summary.json", summary)
    return summary


def _clock(metrics: list[dict], train: list[dict], evals: list[dict]) -> dict:
    """Returns what a system's clock has told; {} without one."""
    hours = [r["hours_cumulative"] for r in metrics if "hours_cumulative" in r]
    if not hours:
        return {}
    return {
        "hours": hours[-1],
        "tiers": tiers.totals(train, evals),
        "unheard": tiers.unheard(train),
    }


def over_seeds(summaries: list[dict]) -> dict:
    """Returns means and sample deviations of runs that differ in their seed only.

    Example:
      >>> runs = [{'seed': s, 'seconds': 1.0, 'ended_by': 'rounds', 'stages': [],
      ...     'client_accuracy': {}, 'accuracy': {'global': {'final': 0.5 + s / 10,
      ...     'best': 0.8, 'density': 1.0}}} for s in (0, 1, 2)]
      >>> both = over_seeds(runs)
      >>> both['seeds'], round(both['accuracy']['global']['final_std'], 6)
      ([0, 1, 2], 0.1)
    """
    first, accuracy = summaries[0], {}
    for name in _common([summary["accuracy"] for summary in summaries]):
        of_seeds = [summary["accuracy"][name] for summary in summaries]
        accuracy[name] = {"density": statistics.fmean(a["density"] for a in of_seeds)}
        for key in ("final", "best"):
            values = [a[key] for a in of_seeds]
            accuracy[name][key] = statistics.fmean(values)
            accuracy[name][f"{key}_std"] = statistics.stdev(values)
    same = [k for k in _common(summaries) if all(s[k] == first[k] for s in summaries)]
    averaged = [{k: s[k] for k in _AVERAGED if k in s} for s in summaries]
    lost = [f"seed {s['seed']}: {x}" for s in summaries for x in s.get("lost", ())]
    return (
        {key: first[key] for key in _SHARED if key in same}
        | {key: summaries[-1][key] for key in ("memory",) if key in first}
        | {
            "seeds": [summary["seed"] for summary in summaries],
            "accuracy": accuracy,
            "stages": [
                _means(of_seeds)
                for of_seeds in zip(*(s["stages"] for s in summaries), strict=False)
            ],
            "ended_by": ", ".join(dict.fromkeys(s["ended_by"] for s in summaries)),
            "seconds": sum(summary["seconds"] for summary in summaries),
        }
        | _means(averaged)
        | ({"lost": lost} if lost else {})
    )


def _common(of_seeds: Sequence[dict]) -> list:
    """Returns the keys that all records have."""
    return [key for key in of_seeds[0] if all(key in each for each in of_seeds)]


def _means(of_seeds: Sequence[dict]) -> dict:
    """Averages every number; keeps what is the same for all seeds.

    Example:
      >>> _means([{"a": 2, "memory": {"sum": 8}}, {"a": 2, "memory": {"sum": 9}}])
      {'a': 2, 'memory': {'sum': 8.5}}
    """
    means = {}
    for key in _common(of_seeds):
        values = [each[key] for each in of_seeds]
        if all(value == values[0] for value in values):
            means[key] = values[0]
        elif isinstance(values[0], dict):  # bytes by part: partitions differ by seed
            means[key] = _means(values)
        else:
            means[key] = statistics.fmean(values)
    return means


def _accuracy(evals: list[dict]) -> dict:
    """Returns the accuracy by model; the best round is chosen by validation."""
    accuracy = {}
    for name, result in (evals[-1]["models"] if evals else {}).items():
        best = evaluations.best_of(evals, name)
        accuracy[name] = {
            "final": result["accuracy"],
            "best": best["models"][name]["accuracy"],
            "best_round": best["round"],
            **{k: v for k, v in result.items() if k.endswith("density")},
        }
    return accuracy


def _totals(records: list[dict]) -> dict:
    def total(key):
        return sum(r[key] for r in records)

    return {
        "rounds": max(
            (r["round"] for r in records), default=0
        ),  # also if some are lost
        "bits_up": total("bits_up"),
        "bits_down": total("bits_down"),
        "bits_values": total("bits_up_values") + total("bits_down_values"),
        "bits_positions": total("bits_up_positions") + total("bits_down_positions"),
        "flops": total("flops"),
        "flops_dense": total("flops_dense"),
        "flops_executed": total("flops_executed"),
    }
