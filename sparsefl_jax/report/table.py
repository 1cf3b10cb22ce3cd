"""A run's totals as text, and several runs side by side.

`summary.json`, which `experiment.py` writes, holds these keys; any may be absent:

    method, model, dataset, partition, device, commit   str
    seed, rounds    int, rounds of all stages
    stages          list of {name, rounds, bits_up, bits_down, bits_values,
                    bits_positions, flops, flops_dense, flops_executed}: bits and FLOPs
                    of all clients and rounds of the stage. values + positions =
                    up + down. `flops`: multiplied at the actual masks; `flops_dense`:
                    that work without masks; `flops_executed`: what the simulator ran
    accuracy        {model name: {final, best, best_round, density}}, the headline
                    first; shares in [0, 1], rounds of the last stage
    client_accuracy {p10, median, mean}: over the clients' own test splits, in [0, 1]
    seconds         float, wall clock; rounds_per_second: float
    versions        {package: version}

FLOPs count a multiplication and an addition as two; 1 Gbit is 1e9 bits.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sparsefl_jax.report.load import Run

_MISSING = "-"
_COMPARISON = ("run", "method", "model", "rounds", "accuracy", "best", "density")
_COMPARISON += ("traffic", "FLOPs", "dense")
_PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")


def format_si(value: float | None, unit: str = "") -> str:
    """A number to three digits with a metric prefix.

    Args:
      value: the number; None and NaN become "-".
      unit: stands behind the prefix.

    Returns:
      The number, a space, then prefix and unit.

    Example:
      >>> format_si(3_575_667_840, "bit"), format_si(87.0), format_si(0, "FLOP")
      ('3.58 Gbit', '87', '0 FLOP')
    """
    if value is None or not math.isfinite(value):
        return _MISSING
    # Rounded first: 999,999 is 1.00 M, not 1000 k.
    rounded = float(f"{value:.3g}")
    power = int(math.log10(abs(rounded)) // 3) if abs(rounded) >= 1 else 0
    power = min(power, len(_PREFIXES) - 1)
    scaled = rounded / 1000**power
    decimals = 2 if abs(scaled) < 10 else 1 if abs(scaled) < 100 else 0
    number = f"{scaled:g}" if power == 0 else f"{scaled:.{decimals}f}"
    return f"{number} {_PREFIXES[power]}{unit}".rstrip()


def format_percent(share: float | None, decimals: int = 2) -> str:
    """A share in [0, 1] as a percentage; None and NaN become "-".

    Example:
      >>> format_percent(0.8725), format_percent(1.0, 0), format_percent(None)
      ('87.25 %', '100 %', '-')
    """
    if share is None or not math.isfinite(share):
        return _MISSING
    return f"{100 * share:.{decimals}f} %"


def format_seconds(seconds: float | None) -> str:
    """A duration in its two largest units; None and NaN become "-".

    Example:
      >>> format_seconds(4.25), format_seconds(723), format_seconds(9000)
      ('4.2 s', '12 min 3 s', '2 h 30 min')
    """
    if seconds is None or not math.isfinite(seconds):
        return _MISSING
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def summary_table(summary: Mapping[str, Any]) -> str:
    """A run's totals, as printed at its end.

    Args:
      summary: the keys of the module docstring; what is absent is left out or "-".

    Returns:
      Several lines of fixed-width columns, without a newline at the end.

    Example:
      >>> print(summary_table({"method": "fedavg", "rounds": 2, "seconds": 4.0}))
      fedavg, 2 rounds
      <BLANKLINE>
      time  4.0 s
    """
    blocks = [
        _heading(summary),
        _accuracy_block(summary),
        _communication_block(summary.get("stages", [])),
        _computation_block(summary.get("stages", [])),
        _footer(summary),
    ]
    return "\n\n".join(block for block in blocks if block)


def comparison_table(runs: Sequence[Run]) -> str:
    """Several runs as a Markdown table, a row for each run and model.

    Accuracy is that of the last evaluation and the best of all; bits and FLOPs are those
    of the rounds that the run has done, so a run that has not ended shows what it has.

    Args:
      runs: what `read_run` returned.

    Returns:
      A Markdown table, without a newline at the end.

    Example:
      >>> print(comparison_table([]))
      | run | method | model | rounds | accuracy | best | density | traffic | FLOPs | dense |
      | --- | --- | --- | --: | --: | --: | --: | --: | --: | --: |
    """  # noqa: E501
    rows = [row for run in runs for row in _comparison_rows(run)]
    rule = ["---"] * 3 + ["--:"] * (len(_COMPARISON) - 3)
    return "\n".join(f"| {' | '.join(row)} |" for row in [_COMPARISON, rule, *rows])


def _comparison_rows(run: Run) -> list[list[str]]:
    last = [*run.train[-1:], *run.evals[-1:]]
    gbits = [r["gbit_cumulative"] for r in last]
    rounds = [run.starts[r["stage"]] + r["round"] for r in last]
    tail = [
        format_si(1e9 * max(gbits) if gbits else None, "bit"),
        format_si(sum(r["flops"] for r in run.train)),
        format_si(sum(r["flops_dense"] for r in run.train)),
    ]
    configured = run.config.get("algorithm", {}).get("name", _MISSING)
    head = [run.path.resolve().name, run.summary.get("method", configured)]
    models = run.evals[-1]["models"] if run.evals else {_MISSING: {}}
    rows = []
    for name, final in models.items():
        seen = [e["models"].get(name, {}).get("accuracy") for e in run.evals]
        seen = [x for x in seen if x is not None and math.isfinite(x)]
        accuracy = [
            format_percent(final.get("accuracy")),
            format_percent(max(seen, default=None)),
            format_percent(final.get("density")),
        ]
        rows.append([*head, name, str(max(rounds, default=0)), *accuracy, *tail])
    return rows


def _heading(summary: Mapping[str, Any]) -> str:
    parts = [summary.get("method"), summary.get("model"), summary.get("dataset")]
    parts += [summary.get("partition")]
    parts += [f"{summary['rounds']} rounds"] if "rounds" in summary else []
    parts += [f"seed {summary['seed']}"] if "seed" in summary else []
    return ", ".join(str(part) for part in parts if part is not None)


def _accuracy_block(summary: Mapping[str, Any]) -> str:
    rows = [["accuracy", "final", "best", "in round", "density"]]
    for name, entry in (summary.get("accuracy") or {}).items():
        final, best = (format_percent(entry.get(k)) for k in ("final", "best"))
        best_round = str(entry.get("best_round", _MISSING))
        rows.append(
            [name, final, best, best_round, format_percent(entry.get("density"))]
        )
    clients = summary.get("client_accuracy") or {}
    lines = _align(rows) if len(rows) > 1 else []
    if clients:
        shares = [f"{name} {format_percent(x)}" for name, x in clients.items()]
        lines.append("clients, each on its own test split: " + ", ".join(shares))
    return "\n".join(lines)


def _communication_block(stages: Sequence[Mapping[str, Any]]) -> str:
    keys = ("bits_up", "bits_down", "bits_values", "bits_positions")
    head = ["communication", "rounds", "up", "down", "values", "positions"]
    return "\n".join(
        _align([head, *_stage_rows(stages, keys, "bit")]) if stages else []
    )


def _computation_block(stages: Sequence[Mapping[str, Any]]) -> str:
    keys = ("flops", "flops_dense", "flops_executed")
    head = ["training FLOPs", "rounds", "sparse", "dense", "executed"]
    return "\n".join(_align([head, *_stage_rows(stages, keys, "")]) if stages else [])


def _stage_rows(stages, keys, unit) -> list[list[str]]:
    rows = [
        [
            stage["name"],
            str(stage["rounds"]),
            *(format_si(stage[k], unit) for k in keys),
        ]
        for stage in stages
    ]
    if len(stages) > 1:
        totals = [format_si(sum(s[k] for s in stages), unit) for k in keys]
        rows.append(["total", str(sum(s["rounds"] for s in stages)), *totals])
    return rows


def _footer(summary: Mapping[str, Any]) -> str:
    lines = []
    if "seconds" in summary:
        speed = summary.get("rounds_per_second")
        rate = f", {speed:.3g} rounds/s" if speed is not None else ""
        lines.append(f"time  {format_seconds(summary['seconds'])}{rate}")
    made_with = [summary["device"]] if summary.get("device") else []
    made_with += [f"{k} {v}" for k, v in summary.get("versions", {}).items()]
    made_with += [f"commit {summary['commit']}"] if summary.get("commit") else []
    if made_with:
        lines.append("with  " + ", ".join(made_with))
    return "\n".join(lines)


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    """First column left, the others right, two spaces between."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(widths[0])]
            + [x.rjust(w) for x, w in zip(row[1:], widths[1:], strict=True)]
        )
        for row in rows
    ]
