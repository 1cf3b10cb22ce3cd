"""Formats numbers for people: metric prefixes, percentages, durations; columns."""

import math
import sys
from collections.abc import Sequence

MISSING = "-"
_PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")


def format_si(value: float | None, unit: str = "") -> str:
    """Formats a number to three digits with a metric prefix.

    Args:
      value: the number; None, NaN and infinity become "-".
      unit: printed after the prefix.

    Returns:
      The number, a space, then prefix and unit.

    Example:
      >>> format_si(3_575_667_840, "bit"), format_si(87.0), format_si(0, "FLOP")
      ('3.58 Gbit', '87', '0 FLOP')
    """
    if value is None or not math.isfinite(value):
        return MISSING
    # Round first: 999,999 is 1.00 M, not 1000 k.
    rounded = float(f"{value:.3g}")
    power = int(math.log10(abs(rounded)) // 3) if abs(rounded) >= 1 else 0
    power = min(power, len(_PREFIXES) - 1)
    scaled = rounded / 1000**power
    decimals = 2 if abs(scaled) < 10 else 1 if abs(scaled) < 100 else 0
    number = f"{scaled:g}" if power == 0 else f"{scaled:.{decimals}f}"
    return f"{number} {_PREFIXES[power]}{unit}".rstrip()


def format_percent(share: float | None, decimals: int = 2) -> str:
    """Formats a share in [0, 1] as a percentage.

    Args:
      share: the number; None, NaN and infinity become "-".
      decimals: digits after the decimal point.

    Returns:
      The percentage with its sign, such as "87.25 %".

    Example:
      >>> format_percent(0.8725), format_percent(1.0, 0), format_percent(None)
      ('87.25 %', '100 %', '-')
    """
    if share is None or not math.isfinite(share):
        return MISSING
    return f"{100 * share:.{decimals}f} %"


def some(names: Sequence[str], most: int = 8) -> str:
    """Returns the first of many names, and how many more there are.

    Example:
      >>> some(["a", "b"]), some([f"px{i}" for i in range(784)])[-13:]
      ('a, b', ' and 776 more')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def tally(names: Sequence[str], counts: Sequence[int], most: int = 12) -> str:
    """Lists names with their counts, and of more than `most` how many others there are.

    Example:
      >>> tally(["ill", "well", "dead"], [3, 40, 0], 2)
      'ill (3), well (40) and 1 more'
    """
    pairs = zip(names, counts, strict=True)
    return some([f"{name} ({count})" for name, count in pairs], most)


def format_seconds(seconds: float | None) -> str:
    """Formats a duration in its two largest units; None, NaN, infinity become "-".

    Args:
      seconds: the duration.


    Example:
      >>> format_seconds(4.25), format_seconds(723), format_seconds(9000)
      ('4.2 s', '12 min 3 s', '2 h 30 min')
    """
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def align(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Aligns columns: the first to the left, others to the right, two spaces apart.

    Args:
      rows: cells of each row; all rows have the same length.
      left: the number of columns that are aligned to the left.

    Returns:
      One line per row.


    Example:
      >>> align([["bits", "up"], ["a", "12 bit"]])
      ['bits      up', 'a     12 bit']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [str.ljust] * left + [str.rjust] * (len(widths) - left)
    return [
        "  ".join(side(x, w) for side, x, w in zip(sides, row, widths, strict=True))
        for row in rows
    ]


def say(text: str) -> None:
    """Prints a text; letters that the output cannot encode become question marks."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))
