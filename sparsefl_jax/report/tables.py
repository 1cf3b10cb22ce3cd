"""Formats a run's totals as text.

`summary.json` holds these keys, any of which may be absent:

    method, model, dataset, partition, device, commit   str
    seed, rounds    int, rounds of all stages
    stages          list of {name, rounds, bits_up, bits_down, bits_values,
                    bits_positions, flops, flops_dense, flops_executed}: bits and FLOPs
                    of all clients and rounds of the stage. values + positions =
                    up + down. `flops`: the work at the actual masks; `flops_dense`: the
                    same work without masks; `flops_executed`: the simulator's work;
                    chunk, memory {part: bytes}, compile_seconds
    accuracy        {model name: {final, best, best_round, density}}, the headline
                    first, also with `validation` after the last round if that split
                    exists; with `seen_accuracy` and `unseen_accuracy` after it where
                    clients are unseen; shares in [0, 1], rounds of the last stage
    metric          'pooled' or 'clients', whose accuracy the headline is
    measure, better with another measure than accuracy; keys say `value` for `accuracy`
    best            {stage, round, accuracy, chosen_by}: the headline's, on the test
                    set; chosen by 'validation' if that split exists, else by 'test'
    ended_by        'rounds', or the first limit reached: 'gbit', 'pflop', 'accuracy',
                    'hours'
    hours           float, of virtual time; tiers: {name: {drawn, dropped, accuracy}},
                    of the devices; unheard: int, the rounds in which no uplink came
                    in time; all only with a system
    client_accuracy {p10, median, mean}: over the clients' own test splits, in [0, 1]
    seconds         float, wall clock; rounds_per_second: float
    memory          {estimated, devices, process}: bytes; the estimate of the largest
                    stage, and the measured peaks (None if devices do not report one)
    names           {classes, clients}: lists of names, where there are any
    versions        {package: version}
    data            {field: checksum} of the samples and of the tables of clients' rows

FLOPs count a multiplication and an addition as two; 1 Gbit is 1e9 bits.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sparsefl_jax.core import formats
from sparsefl_jax.core.formats import MISSING, format_percent, format_seconds
from sparsefl_jax.report.load import Record, Run, unify

Rows = list[list[str]]

# Columns of costs by stage: the key in a summary's `stages`.
BITS = {name: f"bits_{name}" for name in ("up", "down", "values", "positions")}
FLOPS = {"sparse": "flops", "dense": "flops_dense", "executed": "flops_executed"}
WHOSE = {
    "pooled": "the server's model on the whole test set",
    "clients": "the mean over clients, each on its own test samples and, if the method"
    " deploys them, with its own model",
}


def summary_table(summary: Mapping[str, Any]) -> str:
    """Formats a run's totals, as printed at its end.

    Args:
      summary: the keys of the module docstring; absent ones are left out or "-".

    Returns:
      Several lines of fixed-width columns, without a newline at the end.

    Example:
      >>> print(summary_table({"method": "fedavg", "rounds": 2, "seconds": 4.0}))
      fedavg, 2 rounds
      <BLANKLINE>
      time  4.0 s
    """
    hours = summary.get("hours")
    facts = {
        "time": "seconds" in summary and duration(summary),
        "clock": hours and f"{format_seconds(3600 * hours)} of virtual time",
        "with": made_with(summary),
    }
    summary = unify(dict(summary))
    tables = (
        accuracy_rows(summary),
        stage_rows(summary, "communication", BITS),
        stage_rows(summary, "training FLOPs", FLOPS),
    )
    accuracy, *costs = (formats.align(rows) if len(rows) > 1 else [] for rows in tables)
    blocks = [
        [heading(summary)] if heading(summary) else [],
        accuracy + accuracy_notes(summary),
        *costs,
        [f"{name:6}{text}" for name, text in facts.items() if text],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def format_value(value: float | None, measure: str = "accuracy") -> str:
    """Formats a value of a measure: the accuracy in percent, others to four digits.

    Example:
      >>> format_value(0.8725), format_value(0.8725, "f1"), format_value(None, "f1")
      ('87.25 %', '0.8725', '-')
    """
    if measure == "accuracy" or value is None or not math.isfinite(value):
        return format_percent(value)
    return f"{value:.4g}"


def heading(summary: Mapping[str, Any]) -> str:
    """Describes a run in one line: method, model, data, rounds and seed."""
    ended_by = summary.get("ended_by", "rounds")
    parts = [
        *(summary.get(name) for name in ("method", "model", "dataset", "partition")),
        f"{summary['rounds']} rounds" if "rounds" in summary else None,
        f"ended by {ended_by}" if ended_by != "rounds" else None,
        f"seed {summary['seed']}" if "seed" in summary else None,
    ]
    return ", ".join(str(part) for part in parts if part is not None)


def accuracy_rows(summary: Mapping[str, Any]) -> Rows:
    """Returns a head and a row for each deployed model; rounds are of all stages."""
    entries = summary.get("accuracy") or {}
    shown = ["validation"] * any("validation" in e for e in entries.values())
    keys = dict.fromkeys(key for entry in entries.values() for key in entry)
    apart = [key for key in keys if key.endswith("seen_accuracy")]
    titles = [key.removesuffix("_accuracy") for key in apart]
    measure = summary.get("measure", "accuracy")
    rows = [[measure, *shown, "final", "best", "in round", *titles, "density"]]
    before = sum(stage["rounds"] for stage in (summary.get("stages") or [])[:-1])
    for name, entry in entries.items():
        values = {k: format_value(v, measure) for k, v in entry.items()}
        shares = [values.get(k, MISSING) for k in (*shown, "final", "best")]
        best_round = entry.get("best_round")
        in_round = MISSING if best_round is None else str(before + best_round)
        parts = [values.get(key, MISSING) for key in apart]
        parts.append(format_percent(entry.get("density")))
        rows.append([name, *shares, in_round, *parts])
    return rows


def accuracy_notes(summary: Mapping[str, Any]) -> list[str]:
    """Returns lines on whose accuracy it is, the best round, and the clients."""
    lines, measure = [], summary.get("measure", "accuracy")
    if (metric := summary.get("metric")) in WHOSE:
        lines.append(f"{measure} ({metric}): {WHOSE[metric]}")
    if (summary.get("best") or {}).get("chosen_by") == "validation":
        lines.append("best: in the round that validation chooses")
    if clients := summary.get("client_accuracy"):
        shares = [f"{name} {format_value(x, measure)}" for name, x in clients.items()]
        lines.append("clients, each on its own test split: " + ", ".join(shares))
    return lines


def stage_rows(
    summary: Mapping[str, Any], title: str, columns: Mapping[str, str]
) -> Rows:
    """Returns a head, the costs by stage, and the total of several stages.

    Args:
      summary: of the run.
      title: of the first column, the stages' names.
      columns: the key of each cost by its title, such as `BITS`.
    """
    stages = summary.get("stages") or []
    keys = "rounds", *columns.values()
    total = {key: sum(stage[key] for stage in stages) for key in keys}
    rows = [[title, "rounds", *columns]]
    for stage in [*stages, total | {"name": "total"}]:
        costs = [
            formats.format_si(stage[k], "bit" * k.startswith("bits")) for k in keys[1:]
        ]
        rows.append([stage["name"], str(stage["rounds"]), *costs])
    return rows if len(stages) > 1 else rows[:-1]


def duration(summary: Mapping[str, Any]) -> str:
    """Returns the wall-clock time, the part of compilation, and rounds per second."""
    speed = summary.get("rounds_per_second")
    rate = f", {speed:.3g} rounds/s" if speed is not None else ""
    stages = summary.get("stages") or []
    compiling = [s["compile_seconds"] for s in stages if s.get("compile_seconds")]
    part = f", {format_seconds(sum(compiling))} of it compilation" if compiling else ""
    return format_seconds(summary.get("seconds")) + part + rate


def made_with(summary: Mapping[str, Any]) -> str:
    """Returns the device, the versions and the commit in one line."""
    parts = [
        summary.get("device"),
        *(f"{name} {v}" for name, v in (summary.get("versions") or {}).items()),
        f"commit {summary['commit']}" if summary.get("commit") else None,
    ]
    return ", ".join(filter(None, parts))


def assumptions(run: Run) -> list[str]:
    """Describes the packets that an assumption leaves uncharged, one line each.

    Example:
      >>> from pathlib import Path
      >>> train = [dict(stage=0, round=1, assumed={"down/delta": "as in the paper"})]
      >>> assumptions(Run(Path("a"), train, [], [0], {}, {}, None))
      ["Not charged: 'delta', down, in stage 0 (as in the paper)."]
    """
    reasons = {}
    for record in run.train:
        for place, reason in record.get("assumed", {}).items():
            reasons[record["stage"], *place.split("/", 1)] = reason
    names = [stage["name"] for stage in run.summary.get("stages", [])]
    names += [f"stage {i}" for i in range(len(names), len(run.starts))]
    return [
        f"Not charged: {packet!r}, {direction}, in {names[stage]} ({reason})."
        for (stage, direction, packet), reason in reasons.items()
    ]


def tier_totals(
    train: Sequence[Record], evals: Sequence[Record]
) -> dict[str, dict[str, Any]]:
    """Summarises the tiers of devices of a run; {} if it had no clock.

    Args:
      train: its records of training.
      evals: its evaluations, of which the last counts.

    Returns:
      By the name of a tier: `drawn` and `dropped`, how often its clients were drawn and
      were late, and `accuracy`, the mean over its clients, each on its own test
      samples; None if it has none.

    Example:
      >>> record = {"tiers": {"low": {"drawn": 2, "dropped": 1}}}
      >>> tier_totals([record, record], [{"tier_accuracy": {"low": 0.5}}])
      {'low': {'drawn': 4, 'dropped': 2, 'accuracy': 0.5}}
    """
    totals = {}
    for record in train:
        for name, tier in record.get("tiers", {}).items():
            total = totals.setdefault(name, {"drawn": 0, "dropped": 0})
            total["drawn"] += tier["drawn"]
            total["dropped"] += tier["dropped"]
    reached = evals[-1].get("tier_accuracy", {}) if evals else {}
    return {n: total | {"accuracy": reached.get(n)} for n, total in totals.items()}


def unheard(train: Sequence[Record]) -> int:
    """Counts the rounds in which no uplink came in time, so that nothing was learned.

    Example:
      >>> late, heard = ({"low": {"drawn": 2, "dropped": n}} for n in (2, 1))
      >>> unheard([{"tiers": late}, {"tiers": heard}, {}])
      1
    """
    tiers = [record["tiers"].values() for record in train if record.get("tiers")]
    return sum(all(t["drawn"] == t["dropped"] for t in of_round) for of_round in tiers)


def tier_rows(
    tiers: Mapping[str, Mapping[str, Any]], measure: str = "accuracy"
) -> list[list[str]]:
    """Returns a head and a row for each tier.

    Args:
      tiers: as `tier_totals` returns them.
      measure: what their `accuracy` is.

    Example:
      >>> tier_rows({"low": {"drawn": 4, "dropped": 2, "accuracy": 0.5}})[1]
      ['low', '4', '2', '50.00 %', '50.00 %']
    """
    rows = [["devices", "drawn", "late", "share late", measure]]
    for name, tier in tiers.items():
        drawn, dropped = tier["drawn"], tier["dropped"]
        late = format_percent(dropped / (drawn or math.nan))
        reached = format_value(tier.get("accuracy"), measure)
        rows.append([name, f"{drawn:g}", f"{dropped:g}", late, reached])
    return rows
