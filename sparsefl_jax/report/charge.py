"""The charges of a run: bits by stage and direction."""

from sparsefl_jax.core.formats import MISSING, format_percent, format_si
from sparsefl_jax.report.load import Record, Run, stage_name


def charge_rows(run: Run) -> list[list[str]]:
    """Returns the bits of all clients and rounds of each stage, by direction.

    Args:
      run: the records.

    Returns:
      A head, then a row for each stage and direction, and rows of totals if there are
      several stages. Values that the records lack are "-".

    Example:
      >>> from pathlib import Path
      >>> train = [dict(stage=0, round=1, bits_up=8, bits_down=24, clients=[3])]
      >>> for row in charge_rows(Run(Path("a"), train, [], [0], {}, {}, None)):
      ...     print(*row, sep=", ")
      stage, direction, bits, of all, values, positions, a client and round
      stage 0, up, 8 bit, 25.0 %, -, -, 8 bit
      stage 0, down, 24 bit, 75.0 %, -, -, 24 bit
    """
    keys = ("bits_up", "bits_down")
    total = sum(_total(run.train, key) or 0 for key in keys)
    parts = ("values", "positions", "a client and round")
    rows = [["stage", "direction", "bits", "of all", *parts]]
    stages = [
        (stage_name(run, stage), [r for r in run.train if r["stage"] == stage])
        for stage in sorted({r["stage"] for r in run.train})
    ]
    stages += [("all stages", run.train)] if len(stages) > 1 else []
    for name, records in stages:
        visits = sum(len(r.get("clients") or ()) for r in records)
        for key in keys:
            bits = _total(records, key)
            known = bits is not None
            row = [
                format_si(bits, "bit"),
                format_percent(bits / total, 1) if known and total else MISSING,
                format_si(_total(records, f"{key}_values"), "bit"),
                format_si(_total(records, f"{key}_positions"), "bit"),
                format_si(bits / visits, "bit") if known and visits else MISSING,
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


def _total(records: list[Record], key: str) -> int | None:
    values = [r[key] for r in records if r.get(key) is not None]
    return sum(values) if values else None
