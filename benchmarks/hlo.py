"""Reads the text of a compiled program: collectives, copies, kernels, cycles.

The text is that of `jax.stages.Compiled.as_text`. It holds what one device runs.
"""

import collections
import graphlib
import itertools
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

COLLECTIVES = (
    *("all-reduce", "all-gather", "reduce-scatter"),
    *("all-to-all", "collective-permute", "ragged-all-to-all"),
)
_COPIES = ("copy", "copy-done")
# What runs the instructions of other computations one by one, and what runs nothing.
_CONTROL = ("while", "conditional", "call", "async-start")
_NOTHING = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast")
_SLICES = ("slice", "dynamic-slice", "gather")  # read what they return
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}  # write this operand, in place
_SHAPE = re.compile(r"\b(pred|[suf]\d+|bf16|c\d+|f8\w+)\[([\d,]*)\]")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|\w+_computations?)="
    r"(?:\{([^}]*)\}|%?([\w.\-]+))"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')


class Instruction(NamedTuple):
    """An instruction of a program, and how often it runs."""

    name: str
    opcode: str  # 'fusion', 'all-reduce', ...
    shape: str  # of its result, as XLA writes it
    text: str  # its operands and attributes
    times: float = 1  # in one call of the program
    where: str = ""  # the computation that it is in

    @property
    def bytes(self) -> int:
        """Returns the bytes of its result; those of all parts of a tuple."""
        return sum(_bytes(*found) for found in _SHAPE.findall(self.shape))


def instructions(
    text: str, trips: float = 1, first: float | None = None, steps: int | None = None
) -> Iterator:
    """Walks through what a program runs, into loops, branches and fusions.

    All branches of a condition count.

    Args:
      text: the compiled program.
      trips: how often a loop runs whose length depends on the data.
      first: how often such a loop runs that is in no other; by default `trips`.
      steps: the length of known loops that count as one whose length is unknown.

    Yields:
      An `Instruction`.
    """
    computations, entry = _computations(text)
    called = {
        name: [callee for one in body for callee in _called(one.text)]
        for name, body in computations.items()
    }
    counted = collections.Counter({entry: 1})
    # Callers come first, so that all calls of a computation are counted before it.
    for name in reversed([*graphlib.TopologicalSorter(called).static_order()]):
        for one in computations.get(name, ()) if counted[name] else ():
            times = counted[name]
            yield one._replace(times=times, where=name)
            if one.opcode == "while":
                unknown = trips if first is None or name != entry else first
                known = _known_trips(one.text, computations)
                times *= unknown if known in (None, 0, steps) else known
            for callee in _called(one.text):
                counted[callee] += times


def collectives(
    text: str, trips: float = 1, first: float | None = None
) -> dict[str, int]:
    """Returns the bytes of all results of collectives by kind, for each device.

    Args:
      text, trips, first: as `instructions` takes them.

    Example:
      >>> collectives('''ENTRY %main (x: f32[8]) -> f32[8] {
      ...   %x = f32[8]{0} parameter(0)
      ...   ROOT %sum = f32[8]{0} all-reduce(%x), replica_groups={}, to_apply=%add
      ... }''')
      {'all-reduce': 32}
    """
    found: dict[str, float] = {}
    for one in instructions(text, trips, first):
        kind = one.opcode.removesuffix("-done")  # of `-start` the result is elsewhere
        if kind in COLLECTIVES:
            found[kind] = found.get(kind, 0) + one.times * one.bytes
    return {kind: round(size) for kind, size in found.items()}


def largest_copy(text: str) -> int:
    """Returns the bytes of the largest array that a program copies as a whole.

    Example:
      >>> largest_copy('''ENTRY %main (x: f32[8,2]) -> f32[8,2] {
      ...   %x = f32[8,2]{1,0} parameter(0)
      ...   ROOT %y = f32[8,2]{0,1} copy(%x)
      ... }''')
      64
    """
    copies = (one.bytes for one in instructions(text) if one.opcode in _COPIES)
    return max(copies, default=0)


def estimated_cycles(
    text: str, trips: float = 1, first: float | None = None
) -> int | None:
    """Sums the cycles that a TPU's compiler expects its instructions to take.

    The compiler writes them without documentation; None if there are none.

    Args:
      text, trips, first: as `instructions` takes them.
    """
    found = [
        one.times * int(cycles[1])
        for one in instructions(text, trips, first)
        if (cycles := _CYCLES.search(one.text))
    ]
    return round(sum(found)) if found else None


class Work(NamedTuple):
    """What a GPU and its host do in a call of a program."""

    kernels: float  # launched, copies among them
    waits: float  # of the host, which reads whether a loop goes on or which branch runs
    bytes: float  # that the kernels read and write


def work(
    text: str, trips: float = 1, first: float | None = None, steps: int | None = None
) -> Work:
    """Counts what a GPU runs; caches are left out.

    A slice or an update in place counts the bytes that it touches. The host waits once
    more than a loop has trips whose number the compiler does not know.

    Args:
      text, trips, first, steps: as `instructions` takes them.

    Example:
      >>> work('''ENTRY %main (x: f32[8,2]) -> f32[8,2] {
      ...   %x = f32[8,2]{1,0} parameter(0)
      ...   ROOT %y = f32[8,2]{0,1} copy(%x)
      ... }''')
      Work(kernels=1, waits=0, bytes=128)
    """
    every = [*instructions(text, trips, first, steps)]  # callers come first
    named = {one.name: one for one in every}
    bodies = {k: [*g] for k, g in itertools.groupby(every, lambda one: one.where)}
    kernels = waits = size = 0
    launched = {every[0].where}
    for one in every:
        if one.where not in launched or one.opcode in _NOTHING:
            continue
        if one.opcode in _CONTROL:
            launched.update(_called(one.text))
        else:
            kernels += one.times
            size += one.times * _touched(one, bodies, named)
        if one.opcode == "conditional":
            waits += one.times
        elif one.opcode == "while" and not _TRIPS.search(one.text):
            waits += one.times + bodies[_called(one.text)[0]][0].times
    return Work(kernels, waits, size)


def _touched(kernel: Instruction, bodies: dict, named: dict) -> int:
    """Returns the bytes that a kernel reads and writes."""
    if kernel.opcode != "fusion":
        return kernel.bytes + sum(named[name].bytes for name in _operands(kernel))
    body = bodies[_called(kernel.text)[0]]
    read = sum(_read(one, body) for one in body if one.opcode == "parameter")
    return read + _written(body[-1], named)


def _read(value: Instruction, body: list) -> int:
    """Returns the bytes of a value that the computation it is in reads."""
    found = 0
    for user in (one for one in body if value.name in _operands(one)):
        whole = value.name in _operands(user)[1:]  # as an index or an update
        if user.opcode == "bitcast":
            found += _read(user, body)
        elif whole or user.opcode not in (*_SLICES, *_UPDATES):
            return value.bytes
        elif user.opcode in _SLICES:
            found += user.bytes
    return min(found, value.bytes)


def _written(result: Instruction, named: dict) -> int:
    """Returns the bytes that a result takes to write."""
    operands = _operands(result)
    if result.opcode in ("tuple", "bitcast"):
        return sum(_written(named[name], named) for name in operands)
    if result.opcode in _UPDATES:
        return named[operands[_UPDATES[result.opcode]]].bytes
    return result.bytes


def _operands(one: Instruction) -> list[str]:
    """Returns the names of what an instruction reads."""
    return re.findall(r"%([\w.\-]+)", re.split(r"\)(?:, |$)", one.text)[0])


def _bytes(dtype: str, sides: str) -> int:
    """Returns the bytes of an array; booleans and anything below take a byte."""
    bits = int(re.search(r"\d+", dtype)[0]) if dtype != "pred" else 8
    size = math.prod(int(side) for side in sides.split(",") if side)
    return -(-size * bits // 8)


def _known_trips(loop: str, computations: dict[str, list]) -> int | None:
    """Returns how often a loop runs by its text or its condition; None if unknown."""
    if known := _TRIPS.search(loop):
        return int(known[1])
    condition = re.search(r"\bcondition=%?([\w.\-]+)", loop)[1]
    *_, root = computations.get(condition) or [Instruction("", "", "", "")]
    below = re.match(r"[^,]+, [^,]*?%?([\w.\-]+)\), direction=LT", root.text)
    for one in computations.get(condition, ()) if below else ():
        if (one.name, one.opcode) == (below[1], "constant"):
            return int(one.text.partition(")")[0])
    return None


def _computations(text: str) -> tuple[dict[str, list], str]:
    """Returns the instructions of each computation by name; and the entry's name."""
    computations, entry, current = {}, "", []
    for line in text.splitlines():
        if line.endswith("{") and not line.startswith((" ", "HloModule")):
            words = line.replace("%", "").split()
            name = words[words[0] == "ENTRY"]
            current = computations.setdefault(name, [])
            entry = name if words[0] == "ENTRY" else entry
        elif found := _INSTRUCTION.match(line):
            current.append(_parsed(*found.groups()))
    return computations, entry


def _parsed(name: str, text: str) -> Instruction:
    """Splits `shape opcode(rest`; the shape of a tuple holds spaces."""
    depths = itertools.accumulate((c == "(") - (c == ")") for c in text)
    ends = (i for i, depth in enumerate(depths) if text[i] == " " and not depth)
    end = next(ends, len(text))
    opcode, _, rest = text[end + 1 :].partition("(")
    return Instruction(name, opcode, text[:end], rest)


def _called(rest: str) -> list[str]:
    groups = (group or name for group, name in _CALLED.findall(rest))
    return [name.strip(" %") for group in groups for name in group.split(",")]
