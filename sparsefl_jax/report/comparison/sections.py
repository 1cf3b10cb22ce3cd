"""Builds the sections of a comparison's page."""

import functools
from collections.abc import Callable, Sequence

from sparsefl_jax.core.formats import MISSING
from sparsefl_jax.report.charge import RULES, assumptions, charge_rows
from sparsefl_jax.report.comparison import evaluations, likeness, measures
from sparsefl_jax.report.comparison.costs import Axis
from sparsefl_jax.report.comparison.differences import differing, settings, shared
from sparsefl_jax.report.comparison.intervals import Interval, paired
from sparsefl_jax.report.comparison.line_styles import looks
from sparsefl_jax.report.comparison.measures import BySeed, Comparison, Entry
from sparsefl_jax.report.markup import (
    Cell,
    Column,
    best_of,
    facts,
    folded,
    note,
    section,
    swatch,
    table,
    text,
    word,
)

LINE = Column("method", number=False)


def names(comparison: Comparison) -> list[Cell]:
    """Returns the first cell of each line's row: its look and its label."""
    cells = []
    styles = looks([entry.group for entry in comparison.entries])
    for entry, look in zip(comparison.entries, styles, strict=True):
        running = any(map(evaluations.unfinished, entry.group.runs))
        badge = '<span class="badge">so far</span>' if running else ""
        label = f'<span title="{text(entry.group.name)}">{text(entry.label)}</span>'
        cells.append(Cell(f'<span class="line">{swatch(look)}{label}{badge}</span>'))
    return cells


def results(comparison: Comparison) -> str:
    """Returns the table of accuracies, densities and total costs."""
    entries = comparison.entries

    def ranked(of: Callable) -> list[Cell]:
        return best_of([percent(measures.over_seeds(entry, of)) for entry in entries])

    columns: dict[Column, list[Cell]] = {LINE: names(comparison)}
    columns[Column("seeds")] = [Cell(str(n := len(e.group.runs)), n) for e in entries]
    columns[Column("last", "%")] = ranked(measures.last_accuracy)
    columns[Column("best", "%")] = ranked(measures.best_accuracy)
    columns[Column("density reached", "%")] = [
        percent(measures.over_seeds(entry, measures.density)._replace(half=None))
        for entry in entries
    ]
    for axis in comparison.axes:
        totals = [measures.total(entry, axis.name).mean for entry in entries]
        columns[Column(axis.title)] = [
            Cell(axis.text(cost), cost, muted=cost is None) for cost in totals
        ]
    for name in ("median", "p10"):
        cells = ranked(functools.partial(measures.of_clients, name=name))
        if any(cell.value is not None for cell in cells):
            columns[Column(f"clients {name}", "%")] = cells
    runs = [run for entry in entries for run in entry.group.runs]
    chosen = set(map(evaluations.chosen_by, runs))
    by = " or the ".join(sorted(chosen))
    split = "split" if chosen == {"validation"} else "set"
    return section(
        "Results",
        note(
            "Last: after the last round. Best: the round that the "
            f"{by} {split} chooses{', optimistic' * ('test' in chosen)}. "
            + _about_intervals(comparison)
        ),
        _sortable(columns, "Results of all methods"),
    )


def budgets(comparison: Comparison, axis: Axis) -> str:
    """Returns the table of accuracies at each budget of an axis."""
    if not comparison.budgets[axis.name]:
        return ""
    columns: dict[Column, list[Cell]] = {LINE: names(comparison)}
    for budget in comparison.budgets[axis.name]:
        found = [measures.at_budget(e, axis, budget) for e in comparison.entries]
        columns[Column(f"at {axis.budget(budget)}", "%")] = best_of(
            [
                Cell(text(f.note), muted=True) if f.note else percent(f.accuracy)
                for f in found
            ]
        )
    explained = "Accuracy interpolated between evaluations, never extrapolated. "
    if (budget := comparison.common_budget(axis)) is not None:
        areas = [measures.areas(entry, axis, budget) for entry in comparison.entries]
        cells = [percent(measures.of_all(area)) for area in areas]
        title = f"mean up to {axis.budget(budget)}"
        columns[Column(title, "%")] = best_of(cells)
        explained += (
            f"Mean up to {axis.budget(budget)}: the area under the accuracy, linear "
            "from 0 at no cost through every evaluation, divided by the budget."
        )
    return _sortable(columns, f"Accuracy at equal {axis.title}") + note(explained)


def contrasts(comparison: Comparison) -> str:
    """Returns the table of differences from the first line, paired by seed."""
    first, *others = comparison.entries
    if not others:
        return ""
    axis = comparison.axes[0]
    area_to, budget = comparison.common_budget(axis), _best_reached(comparison, axis)
    last, best = Column("last", "points"), Column("best", "points")
    wanted: dict[Column, Callable[[Entry], BySeed]] = {
        last: lambda e: measures.by_seed(e, measures.last_accuracy),
        best: lambda e: measures.by_seed(e, measures.best_accuracy),
    }
    if budget is not None:
        column = Column(f"at {axis.budget(budget)}", "points")
        wanted[column] = lambda e: measures.accuracies_at(e, axis, budget)
    if area_to is not None:
        column = Column(f"mean up to {axis.budget(area_to)}", "points")
        wanted[column] = lambda e: measures.areas(e, axis, area_to)
    found = {c: [paired(of(e), of(first)) for e in others] for c, of in wanted.items()}
    columns: dict[Column, list[Cell]] = {LINE: names(comparison)[1:]}
    columns[Column("pairs")] = [Cell(str(f.count), f.count) for f in found[last]]
    for column, gaps in found.items():
        columns[column] = [
            percent(f, "+")._replace(best=f.half is not None and abs(f.mean) > f.half)
            for f in gaps
        ]
    return section(
        f"Differences from {first.label}",
        note(
            "In percentage points, paired by seed, with 95 % intervals. Bold: the "
            "interval excludes 0."
        ),
        _sortable(columns, "Paired differences"),
    )


def configurations(comparison: Comparison) -> str:
    """Returns the fields of the configuration that differ, and those that do not."""
    groups = [entry.group for entry in comparison.entries]
    every, chosen, same = differing(groups), settings(groups), shared(groups)
    rest = {name: values for name, values in every.items() if name not in chosen}
    return section(
        "In what the runs differ",
        _fields(comparison, chosen),
        folded(
            "Arguments that follow from the method",
            _fields(comparison, rest),
        ),
        folded(f"All {len(same)} shared fields", facts(list(same.items()))),
    )


def charges(comparison: Comparison) -> str:
    """Returns what the ledger charged, and every assumption."""
    lines, rows, head = [], [], []
    for entry, name in zip(comparison.entries, names(comparison), strict=True):
        found = dict.fromkeys(x for r in entry.group.runs for x in assumptions(r))
        lines += [note(f"{entry.label}: {line}", "assumed") for line in found]
        head, *charged = charge_rows(entry.group.runs[0])
        rows += [[name, *map(word, row)] for row in charged]
    columns = [LINE, *(Column(t, number=i > 1) for i, t in enumerate(head))]
    return section(
        "What was charged",
        f"<p>{text(RULES)}</p>\n",
        *(lines or [note("No packet was left uncharged by an assumption.")]),
        folded(
            "Bits by stage and direction, of each method's first seed",
            table(columns, rows, "Bits charged"),
        ),
    )


def status_table(status: Sequence[tuple[str, str]]) -> str:
    """Returns the points of a study with their states, and a count of each state."""
    if not status:
        return ""
    kinds = [state.partition(":")[0].strip() for _, state in status]
    counts = [f"{kinds.count(k)} {k}" for k in dict.fromkeys(kinds)]
    columns = [Column("point", number=False), Column("state", number=False)]
    rows = [
        [word(point), Cell(f'<span class="state {text(kind)}">{text(state)}</span>')]
        for (point, state), kind in zip(status, kinds, strict=True)
    ]
    total = f"{len(status)} points: {', '.join(counts)}"
    content = table(columns, rows, "State of every point")
    return f'<div class="status">{folded(total, content, set(kinds) != {"done"})}</div>'


def percent(found: Interval, sign: str = "") -> Cell:
    """Returns a cell of a share in percent with half its interval."""
    if found.mean is None:
        return Cell(MISSING, muted=True)
    _, *half = found.percent().split(" ", 1)
    half = f' <span class="pm">{half[0]}</span>' if half else ""
    mean = f"{100 * found.mean:{sign}.1f}".replace("-", "\N{MINUS SIGN}")
    return Cell(f"{mean}{half}", found.mean)


def _best_reached(comparison: Comparison, axis: Axis) -> float | None:
    """Returns the budget at which most lines have an accuracy, the first among them."""
    first, *others = comparison.entries

    def has(entry: Entry, budget: float) -> bool:
        return not measures.at_budget(entry, axis, budget).note

    budgets = [b for b in comparison.budgets[axis.name] if has(first, b)]
    return max(budgets, key=lambda b: sum(has(e, b) for e in others), default=None)


def _sortable(columns: dict[Column, list[Cell]], label: str) -> str:
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    return table(list(columns), rows, label, sortable=True)


def _fields(comparison: Comparison, values: dict[str, list[str]]) -> str:
    columns = [LINE, *(Column(name, number=False) for name in values)]
    rows = [
        [name, *(word(of[i]) for of in values.values())]
        for i, name in enumerate(names(comparison))
    ]
    return table(columns, rows, "Configuration fields", True) if values else ""


def _about_intervals(comparison: Comparison) -> str:
    counts = {len(entry.group.runs) for entry in comparison.entries}
    if max(counts) == 1:
        return "One seed each, so there are no intervals."
    extra = " Over two seeds t is 12.7, so they are wide." * (2 in counts)
    return f"± is half a 95 % interval over seeds (Student's t).{extra}"


def overview(comparison: Comparison) -> list[tuple[str, str]]:
    """Returns what the runs share, in the words of an experiment's description."""
    groups = [entry.group for entry in comparison.entries]
    same, differ = shared(groups), differing(groups)
    unlike = " ".join(entry.unlike for entry in comparison.entries)
    runs = groups[0].runs

    def named(section: str, *more: str) -> str:
        fields = {n: v for n, v in same.items() if n.startswith(f"{section}.")}
        if any(name.startswith(f"{section}.") for name in differ):
            return "differs"
        name = fields.pop(f"{section}.name", MISSING)
        rest = [
            f"{n.partition('.')[2].replace('_', ' ')} {v}"
            for n, v in fields.items()
            if v not in (MISSING, "0", "False", "float32")
        ]
        return ", ".join([name, *rest])

    def plain(name: str) -> str:
        return "differs" if name in differ else same.get(name, MISSING)

    counts = [plain(name) for name in ("cohort_size", "epochs", "batch_size")]
    a_round = "{} clients, {} epochs, batches of {}".format(*counts)
    a_round = next((word for word in ("differs", MISSING) if word in counts), a_round)
    rate = ("final_learning_rate", "lr_horizon", "lr_delay", "lr_decay")
    changed = {n: plain(n) for n in rate if plain(n) not in (MISSING, "0")}
    schedule = ", ".join(f"{n.replace('_', ' ')} {v}" for n, v in changed.items())
    prints = {evaluations.seed_of(r): likeness.partition_fingerprint(r) for r in runs}
    partitions = ", ".join(f"{p} (seed {s})" for s, p in prints.items())
    data = ", ".join(dict.fromkeys(map(likeness.data_fingerprint, runs)))
    pairs = {
        "data set": plain("dataset"),
        "data fingerprint": "differs" if "data" in unlike else data,
        "partition": named("partition"),
        "partition fingerprint": "differs" if "partition" in unlike else partitions,
        "clients": plain("num_clients"),
        "devices": plain("system"),
        "a round": a_round,
        "rounds": plain("num_rounds"),
        "network": named("model"),
        "optimizer": named("optimizer"),
        "schedule": schedule or "constant rate",
        "metric": "differs" if "metric" in unlike else likeness.metric(groups[0]),
        "seeds": " ".join(map(str, prints)),
    }
    return [(name, value) for name, value in pairs.items() if value != MISSING]
