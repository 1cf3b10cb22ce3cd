"""What travels in two consecutive rounds, drawn for any method from its packets.

A square is an entry of a leaf. Its column is the neuron that it belongs to, and the row
under a kernel is the bias. Packets of the shapes of the parameters lie on a sheet that
shows the network; others, such as thresholds or a seed, have a sheet of their own.
"""

from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from docs.figures.card import (
    ALIVE,
    DEAD,
    INK,
    NEW,
    QUIET,
    SENT,
    ZERO,
    canvas,
    key,
    squares,
)
from docs.figures.recording import CLIENTS, Exchange
from sparsefl_jax.wire import charges, packets
from sparsefl_jax.wire.packets import Message, Packet

CELL, ROW, GUTTER, ROUND, TOP = 5.2, 51.0, 52.0, 270.0, 36.0  # points
LINE = 8.4
MODEL = ("params", "weights", "dense")  # packets that hold the network's parameters
STATES = {
    "not alive": DEAD,
    "alive, does not travel": ALIVE,
    "travels": SENT,
    "travels to a position that is new to the receiver": NEW,
}
Leaves = dict[str, np.ndarray]  # by path, such as 'fc1/kernel'


class Sheet(NamedTuple):
    """The colours of leaves, and the packets that lie on them by their names."""

    colors: Leaves
    network: bool  # whether the leaves are those of the network
    names: list[str]
    covered: set[str]  # the paths at which something travels


def leaves(tree) -> Leaves:
    """Returns the leaves by path."""
    found = jax.tree_util.tree_leaves_with_path(tree)
    name = jax.tree_util.keystr
    return {name(p, simple=True, separator="/"): np.asarray(v) for p, v in found}


def network(mask) -> Leaves:
    """Returns the colours of a network in which nothing travels."""
    return {p: np.where(m, ALIVE, DEAD) for p, m in leaves(mask).items()}


def colors_of(packet: Packet, known: Leaves) -> Leaves:
    """Returns the colours of a packet that is sent, '' where nothing travels.

    Args:
      packet: the packet.
      known: the mask that the receiver holds of packets of its name; {}: none.
    """
    colors, masks = {}, {} if packet.mask is None else leaves(packet.mask)
    placed = masks and packet.fresh and packet.index != "none"
    for path, value in leaves(packet.values).items():
        mask = masks.get(path, np.ones(value.shape, bool))
        new = mask & ~known.get(path, np.zeros_like(mask)) if placed else mask & False
        ones = SENT if packet.index != "entropy" else np.where(value, SENT, ZERO)
        colors[path] = np.where(new, NEW, np.where(mask, ones, ""))
    return colors


def described(packet: Packet) -> tuple[str, int]:
    """Returns words on what a packet takes, and its bits."""
    message = {"packet": packet}
    [layout], [count] = (f(message).values() for f in (packets.layout, packets.count))
    values, positions = map(int, charges.packet_bits(layout, count))
    number, places = int(np.sum(count.entries)), positions - packet.optional
    if not packet.sent:
        text = "not sent"
    elif not packet.bits:
        text = f"positions only, {places} bits"
    elif packet.index == "entropy":
        text = f"{number} zeros and ones in {values} bits"
    else:
        width = "1 bit" if packet.bits == 1 else f"{packet.bits} bits"
        text = f"{number} × {width}" if number > 1 else width
        text += f", positions {places}" if places else ""
    return text + ", flag 1" * packet.optional, values + positions


def laid_out(
    message: Message, base: Leaves, held: dict[str, Leaves], words: dict[str, str]
) -> tuple[list[Sheet], list[str]]:
    """Returns a message as sheets, those of the network first, and lines of text.

    Args:
      message: the packets.
      base: the colours of the network where nothing travels.
      held: the masks that the receiver holds, by packet.
      words: what the packets are called.
    """
    sheets, lines, total = [], [], 0
    for name in sorted(message, key=lambda n: [*MODEL, n].index(n)):
        packet, own = message[name], name.removeprefix("handed/")
        values, (text, bits) = leaves(packet.values), described(packet)
        if not bits or not values:  # common knowledge, or no statistics
            continue
        called, once = words.get(own, own), "" if own == name else ", once"
        lines, total = [*lines, f"{called}{once}: {text}"], total + bits
        if not packet.sent:
            continue
        within = all(p in base and base[p].shape == v.shape for p, v in values.items())
        free = [s for s in sheets if s.network and not s.covered & values.keys()]
        if not (within and free):
            free = [Sheet(dict(base) if within else {}, within, [], set())]
            sheets += free
        sheet = free[0]
        for path, color in colors_of(packet, held.get(name, {})).items():
            sheet.colors[path] = np.where(
                color == "", base[path] if within else DEAD, color
            )
        sheet.names.append(called)
        sheet.covered.update(values)
    if len(lines) > 1:
        lines.append(f"together {total:,} bits")
    sheets.sort(key=lambda sheet: not sheet.network)
    return sheets, lines or ["nothing"]


def draw_sheet(
    ax, x: float, y: float, colors: Leaves, cell=CELL
) -> tuple[float, float]:
    """Draws leaves, layer beside layer; returns where they end, right and below."""
    layers, cells, bottom = {}, [], y
    for path, leaf in colors.items():
        rows = leaf.reshape(-1, leaf.shape[-1] if leaf.ndim else 1)
        layers.setdefault(path.rpartition("/")[0], []).append(rows)
    for parts in layers.values():
        top = y
        for rows in sorted(parts, key=len, reverse=True):
            for i, row in enumerate(rows):
                cells += [
                    (x + j * cell, top + i * cell, str(c)) for j, c in enumerate(row)
                ]
            top += len(rows) * cell + 1.5
        x += max(rows.shape[1] for rows in parts) * cell + 4
        bottom = max(bottom, top)
    squares(ax, cells, cell)
    return x, bottom


def draw_message(ax, x: float, y: float, sheets: list[Sheet], lines: list[str]) -> None:
    """Draws sheets, named if they are several, and lines of text to their right.

    Sheets of the network stand side by side; all others share the column after them.
    """
    top, end = y, x
    for i, sheet in enumerate(sheets):
        if sheets[i - 1].network:
            x, top = end, y
        if len(sheets) > 1:
            name = ", ".join(sheet.names)
            ax.text(x, top + 6, name, fontsize=5.8, color=QUIET)
        right, top = draw_sheet(ax, x, top + 9, sheet.colors)
        end = max(end, right + 3)
    for i, line in enumerate(lines):
        ax.text(end + 2, y + 13 + LINE * i, line, fontsize=6.6, va="center", color=INK)


def draw_rounds(
    path: Path,
    exchanges: dict[tuple[int, int], list[Exchange]],
    titles: dict[tuple[int, int], str],
    words: dict[str, str],
) -> None:
    """Draws the messages of two rounds.

    Args:
      path: the picture.
      exchanges: by stage and round, as `recording.record` returns them.
      titles: of the rounds that are drawn, by stage and round.
      words: what packets are called; by default by their names.
    """
    columns, held = {place: [] for place in titles}, {}
    for place, cohort in exchanges.items():
        for client, mask, down, up in cohort:
            knows = held.setdefault((place[0], client), {})
            base, name = network(mask), CLIENTS[client]
            came = laid_out(down, base, knows, words)
            there = {n: p for n, p in down.items() if p.mask is not None and p.sent}
            knows |= {n: leaves(p.mask) for n, p in there.items() if p.fresh}
            known = {n: leaves(p.mask) for n, p in there.items()}
            left = laid_out(up, received(down, base), known, words)
            rows = (f"server → {name}", *came), (f"{name} → server", *left)
            columns.get(place, []).extend(rows)
    height = TOP + ROW * (1 + max(map(len, columns.values()))) + 4
    with canvas(path, GUTTER + ROUND * len(titles) - 44, height) as ax:
        sheets = [s for rows in columns.values() for _, own, _ in rows for s in own]
        zeros = any(ZERO in c for sheet in sheets for c in sheet.colors.values())
        key(ax, 8, 10, STATES | ({"travels as a 0": ZERO} if zeros else {}))
        for i, (place, rows) in enumerate(columns.items()):
            x = GUTTER + ROUND * i
            _draw_server(ax, x, titles[place], exchanges[place][0].mask)
            for row, (label, *drawn) in enumerate(rows, 1):
                y = TOP + ROW * row
                if row % 2:
                    ax.plot([x - 44, x + ROUND - 56], [y, y], color=ALIVE, lw=0.7)
                ax.text(x - 44, y + 13, label, fontsize=7, va="center")
                draw_message(ax, x, y, *drawn)


def received(down: Message, base: Leaves) -> Leaves:
    """Returns the network of a client: the one that came down, or else the server's."""
    came = {}
    for packet in (down[n] for n in MODEL if n in down):
        if packet.sent and packet.bits:
            values = packet.values if packet.mask is None else packet.mask
            whole = packet.mask is None
            came |= {p: whole | (v != 0) for p, v in leaves(values).items()}
    return network(came) if came.keys() == base.keys() else base


def _draw_server(ax, x: float, title: str, mask) -> None:
    """Draws the heading of a round and the model that the server deploys before it."""
    ax.text(x - 44, TOP - 5, title, fontsize=9, weight="bold", va="center")
    ax.text(x - 44, TOP + 13, "server", fontsize=7, va="center")
    end, _ = draw_sheet(ax, x, TOP + 9, network(mask))
    alive = leaves(mask).values()
    number, size = sum(int(m.sum()) for m in alive), sum(m.size for m in alive)
    text = f"its model: {number} of {size} alive"
    ax.text(end + 5, TOP + 13, text, fontsize=6.6, va="center")
