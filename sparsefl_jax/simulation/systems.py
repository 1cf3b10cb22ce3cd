"""The devices of clients: presets, and tables of one's own.

A table has a row for every tier of devices, with the share of the clients that it has,
or a row for every client, as a trace has it.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sparsefl_jax.core.validate import above, blaming, in_range, one_of, whole
from sparsefl_jax.simulation.clock import Device, System

_RATES = ("gflops", "mbit_down", "mbit_up")
COLUMNS = ("tier", "share", "client", *_RATES, "latency", "available")  # of a table
_RANGES = {"share": "(0, 1]", "latency": "[0, 1e9]"}  # of float32 seconds
_HEAD = ("tier", "share", *_RATES, "latency")
PRESETS = {
    name: [dict(zip(_HEAD, row, strict=True)) for row in rows]
    for name, rows in {
        "mobile": [
            ("high", 0.15, 153.6, 166.13, 21.08, 0.04),
            ("mid", 0.35, 80.0, 35.96, 11.22, 0.04),
            ("low", 0.5, 52.8, 6.0, 2.0, 0.04),
        ],
        "iot": [
            ("lte_m", 0.5, 8.0, 1.0, 1.0, 0.015),
            ("nb_iot", 0.5, 8.0, 0.127, 0.159, 1.6),
        ],
        "tifl": [
            (f"cpu_{cpus:g}", 0.2, 38.4 * cpus, 85.73, 45.74, 0.021)
            for cpus in (4.0, 2.0, 1.0, 0.5, 0.1)
        ],
    }.items()
}


def make_system(
    name: str,
    num_clients: int,
    *,
    seed: int = 0,
    deadline: float | None = None,
    quantile: float | None = None,
) -> System:
    """Assigns devices to clients.

    The presets combine published figures; which network goes with which computer is
    this package's choice, and so are the shares of `iot`.

    - 'mobile': phones. Speeds and shares of high-end, mid-end and low-end phones are
      those of Kim and Wu, AutoFL, MICRO 2021, https://arxiv.org/abs/2107.08147. Their
      networks: the median of 5G in the third quarter of 2021, and the mean of all
      mobile networks in September 2020, with its 40 ms for all (Ookla, Speedtest
      Intelligence and Global Index); 0.75 MB/s down and 0.25 MB/s up, the estimate of
      Wang et al., A Field Guide to Federated Optimization, 2021,
      https://arxiv.org/abs/2107.06917, from a production system.
    - 'iot': boards of 8 GFLOP/s, the Linpack rate of a Raspberry Pi 4 (Feiereisen,
      2022, https://feiereisen.net/?page_id=924), at the peak rates and latencies of
      LTE Cat-M1 and Cat-NB2 (3GPP releases 13 and 14).
    - 'tifl': the five groups of equal size of Chai et al., TiFL, HPDC 2020,
      https://arxiv.org/abs/2001.09249, with 4, 2, 1, 0.5 and 0.1 CPUs. A CPU counts as
      38.4 GFLOP/s: 16 FLOP a cycle at 2.4 GHz. The network is the mean of fixed
      broadband in September 2020 (Ookla, Speedtest Global Index).

    Args:
      name: a preset, or the path of a CSV file. Its columns are `gflops`, in 1e9 FLOP/s
        of training, `mbit_down` and `mbit_up`, in 1e6 bit/s to and from the client, and
        `share` or `client`: rows with `share` are tiers, whose clients are drawn at
        random, rows with `client` those clients' own, from 0. Optional are `tier`, a
        name, `latency`, seconds of a round beside computation and transfers, by default
        0, and `available`, the chance that the client can be drawn, by default 1;
        several chances, separated by spaces, are those of a stage's rounds in turn;
        their number divides the largest one of the table.
      num_clients: N.
      seed: of the draw.
      deadline: seconds after which a round closes; None: with its slowest client.
      quantile: sets the deadline instead, see `clock.System`.

    Raises:
      ValueError: in one line, on a table that cannot be read or does not fit
        `num_clients`, a number out of range, or both `deadline` and `quantile`.

    Example:
      >>> system = make_system("mobile", 20)
      >>> system.tiers, np.bincount(system.tier).tolist()
      (('high', 'mid', 'low'), [3, 7, 10])
    """
    whole("num_clients", num_clients, 1)
    if deadline is not None and quantile is not None:
        raise ValueError(
            f"quantile={quantile} beside deadline={deadline}, expected one of them"
        )
    if deadline is not None:
        above("deadline", deadline, 0)
    if quantile is not None:
        in_range("quantile", quantile, "(0, 1]")
    rows = PRESETS[name] if name in PRESETS else _read(name)
    tiers = tuple(dict.fromkeys(str(row["tier"]) for row in rows))
    of_client = _deal(name, rows, num_clients, seed)
    table = [rows[i] for i in of_client]
    rates = [1e9, 1e6, 1e6, 1.0]
    device = Device(
        *(
            np.array([scale * row.get(column, 0.0) for row in table])
            for column, scale in zip((*_RATES, "latency"), rates, strict=True)
        )
    )
    available = np.array([row.get("available", (1.0,)) for row in table])
    tier = np.array([tiers.index(str(row["tier"])) for row in table], np.int32)
    return System(device, available, tier, tiers, deadline, quantile)


def slowest_first(system: System) -> np.ndarray:
    """Orders clients by FLOP/s, then by their rates up and down, [N] int."""
    device = system.device
    return np.lexsort((device.down, device.up, device.flops))


def _deal(name: str, rows: Sequence[dict], num_clients: int, seed: int) -> np.ndarray:
    """Returns the row of every client, [N] int."""
    if "client" in rows[0]:
        clients = [row["client"] for row in rows]
        if sorted(clients) != list(range(num_clients)):
            raise ValueError(
                f"system={name!r} has {len(rows)} rows of {len(set(clients))} clients, "
                f"expected one for each of 0 to {num_clients - 1}"
            )
        return np.argsort(clients)
    shares = np.array([row["share"] for row in rows])
    if abs(shares.sum() - 1) > 1e-6:
        raise ValueError(f"system={name!r}: shares of sum {shares.sum():g}, expected 1")
    counts = np.diff(np.round(np.cumsum(shares) * num_clients).astype(int), prepend=0)
    if not counts.all():
        empty = rows[int(np.argmin(counts))]["tier"]
        raise ValueError(
            f"system={name!r} leaves no client for {empty!r}, expected more clients"
        )
    dealt = np.repeat(np.arange(len(rows)), counts)
    return np.random.default_rng([seed, 1]).permutation(dealt)


def _read(name: str) -> list[dict[str, Any]]:
    """Reads a table.

    Raises:
      ValueError: names the file, and the line and column that are wrong.
    """
    if not name.endswith(".csv"):
        one_of("system", name, (*PRESETS, "a file .csv"))
    path = Path(name)
    with (
        blaming(f"system={name!r} cannot be read"),
        path.open(newline="", encoding="utf-8-sig") as file,
    ):
        reader = csv.DictReader(file, skipinitialspace=True, restval="")
        found = [(reader.line_num, row) for row in reader]
        head = [column.strip() for column in reader.fieldnames or []]
    for column in head:
        one_of(f"system={name!r}: column", column, COLUMNS)
        if head.count(column) > 1:
            raise ValueError(f"system={name!r} has two columns {column!r}")
    missing = [column for column in _RATES if column not in head]
    if ("share" in head) == ("client" in head):
        missing.append("share or client, and not both")
    if missing or not found:
        what = f"the column {missing[0]}" if missing else "rows"
        raise ValueError(f"system={name!r}, expected {what}")
    rows = []
    for line, row in found:
        with blaming(f"system={name!r}, line {line}"):
            if None in row:
                raise ValueError(f"expected {len(head)} fields")
            rows.append(_row(dict(zip(head, row.values(), strict=True))))
    longest = max(len(row["available"]) for row in rows)
    for row in rows:
        if longest % (length := len(row["available"])):
            raise ValueError(
                f"system={name!r}: available of {length} rounds, expected a number "
                f"that divides the longest, {longest}"
            )
        row["available"] *= longest // length
    return rows


def _row(texts: dict[str, str]) -> dict[str, Any]:
    """Converts the texts of a row; raises ValueError on what is out of range."""
    row: dict[str, Any] = {"tier": texts.pop("tier", "").strip() or "all"}
    chances = texts.pop("available", "").split() or ["1"]
    row["available"] = [_number("available", text) for text in chances]
    for chance in row["available"]:
        in_range("available", chance, "[0, 1]")
    if "client" in texts:
        row["client"] = _number("client", texts.pop("client"), int)
    for column, text in texts.items():
        row[column] = _number(column, text or ("0" if column == "latency" else ""))
        in_range(column, row[column], _RANGES.get(column, "[1e-6, 1e12]"))
    return row


def _number(column: str, text: str, kind: type = float) -> float:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{column}={text!r}, expected a number") from None
