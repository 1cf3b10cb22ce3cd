"""The devices of clients: presets, and tables of one's own.

A table has a row for every tier of devices, with the share of the clients that it has,
or a row for every client, as a trace has it.
"""

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from sparsefl_jax.core import keys
from sparsefl_jax.core.check import UserError, blame, check, check_arguments
from sparsefl_jax.core.types import Count, Positive, Share
from sparsefl_jax.simulation.clock import Device, System

_Rate = Annotated[float, Meta(ge=1e-6, le=1e12)]
# How cells of a table are read that hold no number.
_CELLS = {"tier": str.strip, "available": lambda cell: [*map(float, cell.split())]}


class Row(msgspec.Struct, forbid_unknown_fields=True):
    """A tier of devices, which has a share of the clients, or the device of one."""

    gflops: _Rate
    mbit_down: _Rate
    mbit_up: _Rate
    latency: Annotated[float, Meta(ge=0, le=1e9)] = 0.0  # of float32 seconds
    tier: str = "all"
    share: Annotated[float, Meta(gt=0, le=1)] | None = None
    client: int | None = None
    available: tuple[Annotated[float, Meta(ge=0, le=1)], ...] = (1.0,)


PRESETS = ("mobile", "iot", "tifl")  # tables of this package


@check_arguments
def make_system(
    name: str,
    num_clients: Count,
    *,
    seed: int = 0,
    deadline: Positive | None = None,
    quantile: Share | None = None,
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
        several chances, separated by spaces, are those of a stage's rounds in turn.
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
    if deadline is not None and quantile is not None:
        raise UserError(f"{quantile=} beside {deadline=}, expected one of them")
    rows = _read(name)
    tiers = tuple(dict.fromkeys(row.tier for row in rows))
    table = [rows[i] for i in _deal(name, rows, num_clients, seed)]
    device = Device(
        1e9 * np.array([row.gflops for row in table]),
        1e6 * np.array([row.mbit_down for row in table]),
        1e6 * np.array([row.mbit_up for row in table]),
        np.array([row.latency for row in table]),
    )
    period = math.lcm(*(len(row.available) for row in rows))
    available = np.array([np.resize(row.available, period) for row in table])
    tier = np.array([tiers.index(row.tier) for row in table], np.int32)
    return System(device, available, tier, tiers, deadline, quantile)


def slowest_first(system: System) -> np.ndarray:
    """Orders clients by FLOP/s, then by their rates up and down, [N] int."""
    device = system.device
    return np.lexsort((device.down, device.up, device.flops))


def _deal(name: str, rows: Sequence[Row], num_clients: int, seed: int) -> np.ndarray:
    """Returns the row of every client, [N] int."""
    clients = [row.client for row in rows if row.client is not None]
    if clients:
        if sorted(clients) != list(range(num_clients)):
            raise UserError(
                f"system={name!r} has {len(rows)} rows of {len(set(clients))} clients, "
                f"expected one for each of 0 to {num_clients - 1}"
            )
        return np.argsort(clients)
    shares = np.array([row.share for row in rows])
    if abs(shares.sum() - 1) > 1e-6:
        raise UserError(f"system={name!r}: shares of sum {shares.sum():g}, expected 1")
    counts = np.diff(np.round(np.cumsum(shares) * num_clients).astype(int), prepend=0)
    if not counts.all():
        empty = rows[int(np.argmin(counts))].tier
        raise UserError(
            f"system={name!r} leaves no client of num_clients={num_clients} for "
            f"{empty!r}, expected more clients"
        )
    dealt = np.repeat(np.arange(len(rows)), counts)
    return keys.on_host(seed, keys.DEVICES).permutation(dealt)


def _read(name: str) -> list[Row]:
    """Reads a table.

    Raises:
      ValueError: names the file, the line and what is wrong.
    """
    rows, path = [], Path(name)
    if path.suffix != ".csv":
        check("system", name, (*PRESETS, "a file .csv"))
        path = Path(__file__).with_name("tables") / f"{name}.csv"
    with blame(f"system={name!r}"), path.open(encoding="utf-8-sig") as file:
        head, *lines = csv.reader(file, skipinitialspace=True)
        for number, cells in enumerate(lines, 2):
            with blame(f"line {number}"):
                if cells:
                    rows.append(_row(head, cells))
        kinds = {(row.share is None, row.client is None) for row in rows}
        if kinds not in ({(True, False)}, {(False, True)}):
            raise UserError("expected rows with share or client, and not both")
    return rows


def _row(head: list[str], cells: list[str]) -> Row:
    """Returns a row of a table from its cells; those that are empty have defaults."""
    if len(cells) != len(head):
        raise UserError(f"{len(cells)} cells, expected {len(head)}")
    given: dict[str, Any] = {}
    for name, cell in zip(map(str.strip, head), cells, strict=True):
        if cell.strip():
            given[name] = _CELLS.get(name, float)(cell)
    return msgspec.convert(given, Row, strict=False)
