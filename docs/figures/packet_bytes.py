"""The bits of one sparse packet under two codes of positions."""

import dataclasses
from pathlib import Path

import numpy as np

import sparsefl_jax as sfl
from docs.figures import card, messages, recording
from sparsefl_jax.wire import charges, packets, streams

WIDE, CELL, PER_LINE = 48, 7.0, 64
CODES = {"bitmap": "a bit for each entry", "golomb": "Rice codes of the gaps"}
PARTS = {  # a 0 and a 1
    "number of entries": ("#f2d9a0", "#b07d10"),
    "positions": ("#ecc3b4", card.NEW),
    "values": (card.ZERO, "#2a6ca8"),
}


def uplink() -> packets.Packet:
    """Returns a kernel in the uplink of top-k compression, from a run."""
    model = sfl.models.build(
        "mlp", recording.CLASSES, (recording.FEATURES,), widths=(WIDE,)
    )
    optimizer = sfl.training.make_optimizer(learning_rate=0.3)
    method = sfl.compressed(model, optimizer, density=0.02)
    [[exchange, *_]] = recording.record(
        [sfl.Stage(method, 1, 1, batch_size=8)], [((0,),)], model=model
    ).values()
    packet = exchange.up["delta"]
    values, masks = messages.leaves(packet.values), messages.leaves(packet.mask)
    path = "fc1/kernel"
    return dataclasses.replace(packet, values=values[path], mask=masks[path])


def draw(path: Path) -> None:
    """Draws the stream of a packet, bit by bit."""
    packet = uplink()
    parts = {
        index: lengths(dataclasses.replace(packet, index=index)) for index in CODES
    }
    lines = sum(-(-sum(bits) // PER_LINE) for bits in parts.values())
    width, height = 20 + CELL * PER_LINE, CELL * lines + 46 * len(CODES)
    with card.canvas(path, width, height) as ax:
        y = 12
        for index, words in CODES.items():
            data = streams.encode(dataclasses.replace(packet, index=index))
            stream = np.unpackbits(np.frombuffer(data, np.uint8))
            title = f"{index}: {words}"
            ax.text(10, y, title, fontsize=8.5, weight="bold", va="center")
            ax.text(
                width - 10,
                y,
                f"{len(data)} bytes",
                fontsize=8.5,
                va="center",
                ha="right",
            )
            y = _draw_bits(ax, y + 9, stream, parts[index])
            _draw_lengths(ax, y + 8, parts[index])
            y += 37


def lengths(packet: packets.Packet) -> tuple[int, int, int]:
    """Returns the bits of each of `PARTS`."""
    message = {"up": packet}
    bits = charges.message_bits(packets.layout(message), packets.count(message))
    header = 0 if packet.index == "bitmap" else packet.mask.size.bit_length()
    return header, int(bits.positions) - header, int(bits.values)


def _draw_bits(ax, y: float, stream: np.ndarray, lengths: tuple) -> float:
    """Draws bits in lines; returns where they end."""
    parts = np.repeat(np.arange(len(PARTS)), lengths)
    colors = list(PARTS.values())
    cells = [
        (10 + CELL * (i % PER_LINE), y + CELL * (i // PER_LINE), colors[part][bit])
        for i, (part, bit) in enumerate(zip(parts, stream))  # noqa: B905, padded
    ]
    card.squares(ax, cells, CELL)
    return cells[-1][1] + CELL


def _draw_lengths(ax, y: float, lengths: tuple) -> None:
    """Names the parts of a stream with their bits."""
    x = 10
    for (name, (_, color)), bits in zip(PARTS.items(), lengths, strict=True):
        if bits:
            number = f", {bits // 32} of 32 bits" if name == "values" else ""
            text = f"{name}: {bits} bits{number}"
            ax.text(x, y, text, fontsize=7.5, color=color, va="center")
            x += 4.0 * len(text) + 16
