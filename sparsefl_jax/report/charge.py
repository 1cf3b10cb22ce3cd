"""The charges of a run: bits by stage and direction."""

from sparsefl_jax.core.formats import MISSING, format_percent, format_si
from sparsefl_jax.report.load import Run, stage_name


def charge_rows(run: Run) -> list[list[str]]:
    """Returns the bits of all clients and rounds of each stage, by direction.

    Args:
      run: the records.

    Returns:
      A head, then a row for each stage and direction, and rows of totals if there are
      several stages.

    Example:
      >>> from pathlib import Path
      >>> up = dict(bits_up=8, bits_up_values=8, bits_up_positions=0)
      >>> down = dict(bits_down=24, bits_down_values=20, bits_down_positions=4)
      >>> train = [dict(stage=0, round=1, clients=[3], **up, **down)]
      >>> for row in charge_rows(Run(Path("a"), train, [], [0], {}, {}, None)):
      ...     print(*row, sep=", ")
      stage, direction, bits, of all, values, positions, a client and round
      stage 0, up, 8 bit, 25.0 %, 8 bit, 0 bit, 8 bit
      stage 0, down, 24 bit, 75.0 %, 20 bit, 4 bit, 24 bit
    """
    keys = ("bits_up", "bits_down")
    total = sum(record[key] for record in run.train for key in keys)
    parts = ("values", "positions", "a client and round")
    rows = [["stage", "direction", "bits", "of all", *parts]]
    stages = [
        (stage_name(run, stage), [r for r in run.train if r["stage"] == stage])
        for stage in sorted({r["stage"] for r in run.train})
    ]
    stages += [("all stages", run.train)] if len(stages) > 1 else []
    for name, records in stages:
        visits = sum(len(record["clients"]) for record in records)
        for key in keys:
            bits, values, positions = (
                sum(record[name] for record in records)
                for name in (key, f"{key}_values", f"{key}_positions")
            )
            row = [
                format_si(bits, "bit"),
                format_percent(bits / total, 1) if total else MISSING,
                format_si(values, "bit"),
                format_si(positions, "bit"),
                format_si(bits / visits, "bit") if visits else MISSING,
            ]
            rows.append([name, key.removeprefix("bits_"), *row])
    return rows


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
    return [
        f"Not charged: {packet!r}, {direction}, in {stage_name(run, stage)} ({reason})."
        for (stage, direction, packet), reason in reasons.items()
    ]
