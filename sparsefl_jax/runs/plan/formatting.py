"""Formats a plan as a table, with notes on what its figures mean."""

from sparsefl_jax.core.formats import (
    MISSING,
    align,
    format_percent,
    format_seconds,
    format_si,
)
from sparsefl_jax.data.statistics import statistics_rows
from sparsefl_jax.runs.plan.describe import SHARES


def text(plan: dict) -> str:
    """Formats a plan as a table with a column for each stage.

    Args:
      plan: from `describe.describe`.

    Returns:
      Lines without a newline at the end.
    """
    devices, clients, stages = plan["devices"], plan["clients"], plan["stages"]
    train, total = clients["train"], plan["total"]
    largest = format_percent(clients["largest_share"], 1)
    entropy = dict(statistics_rows(clients))["label entropy of a client"]
    lines = [
        f"devices   {devices['count']} x {devices['kind']}, {_rate(devices)},"
        f" precision {devices['precision']}",
        f"model     {format_si(plan['model']['parameters'])} parameters,"
        f" {format_si(plan['model']['macs'])} multiply-adds a sample",
        f"clients   {clients['number']} with {train['min']} to {train['max']} training"
        f" samples (median {train['median']:g}, the largest {largest} of all),"
        f" {clients['test']} test samples",
        f"labels    entropy of a client {entropy}",
        *_system(plan.get("system")),
        "",
        *_columns(stages),
        "",
        f"total     {total['rounds']} rounds,"
        f" {span(total['gbit'], lambda g: format_si(1e9 * g, 'bit'))},"
        f" {format_si(1e15 * total['pflop_executed'], 'FLOP')} executed,"
        f" {memory(stages, total)}"
        + (f", {span(total['seconds'], format_seconds)}" if total["seconds"] else ""),
        *_notes(stages),
    ]
    return "\n".join(lines)


def _rate(devices: dict) -> str:
    """Formats the matmul rate, which is None where nothing was measured."""
    if devices["matmul_flops"] is None:
        return f"{devices['dtype']}, not at hand"
    rate = format_si(devices["matmul_flops"], "FLOP/s")
    return f"{rate} in {devices['dtype']} matmuls together"


def _system(system: dict | None) -> list[str]:
    """Formats the clients' devices and how long they take."""
    if system is None:
        return []
    tiers = ", ".join(f"{count} {name}" for name, count in system["tiers"].items())
    dense = span(system["seconds"], format_seconds)
    line = f"system    {tiers}; a dense round takes a client {dense} of virtual time"
    if system["closes"] is not None:
        line += f", a round closes after {format_seconds(system['closes'])}"
    return [line]


def span(values, form) -> str:
    """Formats one figure, a range, or an upper bound."""
    low, high = form(values[0]), form(values[-1])
    if low == high:
        return low
    return f"{low} to {high}" if values[0] else f"at most {high}"


def _columns(stages: list[dict]) -> list[str]:
    """Formats the figures of every stage below one another."""

    def bits(key):
        return lambda s: span(s[key], lambda v: format_si(v, "bit"))

    def flops(key):
        return lambda s: format_si(s[key], "FLOP")

    def size(part):
        return lambda s: format_si(s["memory"][part], "B")

    handed = any(s["bits_handed"][1] for s in stages)
    figures = {
        "stage": lambda s: str(stages.index(s)),
        "rounds, clients in each": lambda s: f"{s['rounds']}, {s['cohort']}",
        "epochs, batch, chunk": lambda s: (
            f"{s['epochs']}, {s['batch_size']}, {s['chunk']}"
        ),
        "weights under a mask": lambda s: format_si(s["masked"]),
        "of these alive": lambda s: _share(s["density"]) if s["masked"] else "-",
        "a round: down": bits("bits_down"),
        "         up": bits("bits_up"),
        **({"in a client's first": bits("bits_handed")} if handed else {}),
        "         at the masks": lambda s: f"at most {flops('flops_most')(s)}",
        "         dense": flops("flops_dense"),
        "         executed": flops("flops_executed"),
        "         time": lambda s: (
            span(s["seconds_per_round"], format_seconds)
            if s["seconds_per_round"]
            else MISSING
        ),
        "all clients' rows": lambda s: _rows(s["client_store"]),
        **{f"memory: {k}": size(k) for k in stages[0]["memory"]},
    }
    rows = [[name, *map(figure, stages)] for name, figure in figures.items()]
    return align(rows)


def _share(density: float) -> str:
    return f"at most {density:.3g}" if density < 1 else "unknown"


def memory(stages: list[dict], total: dict) -> str:
    """Formats the memory of the largest stage, a lower bound before compilation."""
    known = all("working set" in stage["memory"] for stage in stages)
    return ("" if known else "at least ") + format_si(total["memory"], "B")


def _rows(client_store: dict) -> str:
    kept = format_si(client_store["bytes"], "B")
    return f"{kept}, {client_store['where']}" if client_store["bytes"] else "-"


def _notes(stages: list[dict]) -> list[str]:
    """Explains which figures are estimates, bounds or assumptions."""
    notes = []
    stores = [s["client_store"] for s in stages if s["client_store"]["working"]]
    sizes = {store["working"] for store in stores}
    if sizes:
        places = " or ".join(sorted({store["where"] for store in stores}))
        notes.append(
            f"Clients' rows on the {places}: the devices hold those of up to "
            f"{' or '.join(map(str, sorted(sizes)))} clients for a segment, and as "
            "many for the next."
        )
    if any(stage["masked"] for stage in stages):
        notes.append(
            "Bits: at least and at most, as they follow from the program and its "
            "arguments; a mask of which these tell nothing may be all of the model or "
            "nothing, and positions may travel every time or never. FLOPs at the "
            "masks: at most the dense ones and a sort of the weights at every step."
        )
    for index, stage in enumerate(stages):
        for packet, reason in stage["assumed"].items():
            notes.append(f"Not charged: {packet} in stage {index} ({reason}).")
    if not all("working set" in stage["memory"] for stage in stages):
        notes.append(
            "Memory: without the working set, which is known once a stage is compiled; "
            "--dry_run compiles all stages."
        )
    if stages[0]["seconds_per_round"]:
        low, high = SHARES
        notes.append(
            f"Time: estimated at {high:g} to {low:g} of the matmul rate, compilation "
            "not included."
        )
    return notes
