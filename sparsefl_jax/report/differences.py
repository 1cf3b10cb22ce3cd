"""Finds where the configurations of runs differ, and labels runs by it.

A run of `sfl.experiment` describes parts whose configuration it does not know, and a
configuration does not have what only that describes. What one of the two lacks is
therefore no difference between them, see `_differ`.
"""

import collections
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sparsefl_jax.core.flatten import flatten
from sparsefl_jax.core.formats import MISSING
from sparsefl_jax.report.groups import Group, made_in_python, method_of

# Fields that differ between runs of one configuration, or change no result.
_IGNORED = (
    *("seed", "seeds", "checkpoint_minutes", "chunk", "client_store", "data_dir"),
    *("memory_gb", "sinks", "writers"),
)
_NAMES = ("algorithm.name", "first_stage.name")  # which the label begins with
_UNKNOWN = {None, MISSING}
_LONGEST = 28  # letters of a value in a label


class Fields(NamedTuple):
    """The fields of the configurations of groups, by dotted name.

    Arguments that only some methods have, with the same value for all of these, follow
    from the method's name and are no settings, nor are the names of methods.
    """

    differing: dict[
        str, list[str]
    ]  # the value of each group, "-" if it lacks the field
    settings: dict[str, list[str]]  # those of them that groups set differently
    shared: dict[str, str]  # the one value of all groups


def fields(group: Group) -> dict[str, str]:
    """Returns the configuration of a group's runs by dotted name, as text.

    Example:
      >>> from pathlib import Path
      >>> from sparsefl_jax.report.load import Run
      >>> config = {"seed": 1, "algorithm": {"name": "spdst", "density": 0.05}}
      >>> fields(Group("a", [Run(Path("a"), [], [], [0], {}, config, None)]))
      {'algorithm.name': 'spdst', 'algorithm.density': '0.05'}
    """
    known = {
        name: _text(value)
        for name, value in flatten(group.runs[0].config).items()
        if name not in _IGNORED
    }
    if made_in_python(group.runs[0]):
        known.pop("source")
        known.pop("partition.name", None)  # which is not known
    return known


def compare_fields(groups: Sequence[Group]) -> Fields:
    """Tells fields that differ between groups from those that do not.

    Args:
      groups: as `read_groups` returned them.
    """
    differing, settings, shared = {}, {}, {}
    for name, values in _table(groups).items():
        if _differ(groups, values):
            differing[name] = [value or MISSING for value in values]
            if name not in _NAMES and len({*values} - {None}) > 1:
                settings[name] = differing[name]
        elif {*values} != {None, MISSING}:
            shared[name] = next((v for v in values if v not in _UNKNOWN), MISSING)
    return Fields(differing, settings, shared)


def make_labels(groups: Sequence[Group]) -> list[str]:
    """Names groups by what differs: the method, the density, and what else it takes.

    A label begins with the method, and with its first stage if that differs between
    runs of the method. The density follows if it is not the same everywhere. Further
    fields follow only where two labels would be the same; if there are none, the
    folder's name does. A group that a study has given a label keeps that.

    Args:
      groups: as `read_groups` returned them.

    Returns:
      One label a group, all different, such as "spdst, density 0.05".
    """
    methods = [method_of(group.runs[0]) for group in groups]
    names = [method.rpartition(" + ")[2] for method in methods]
    several = _ambiguous(names, methods)
    labels = [m if n in several else n for n, m in zip(names, methods, strict=True)]
    columns = _columns(groups)
    density = columns.pop("density", [None] * len(groups))
    labels = [_joined(*pair) for pair in zip(labels, density, strict=True)]
    for words in columns.values():
        labels = _told_apart(labels, words)
    labels = [group.label or label for group, label in zip(groups, labels, strict=True)]
    return _told_apart(labels, [group.name for group in groups])


def _columns(groups: Sequence[Group]) -> dict[str, list[str | None]]:
    """Returns words such as "density 0.05" for each field that differs and each group.

    The same setting of a method and of its first stage is one field where they agree.
    """
    merged = {}
    for name, values in _table(groups).items():
        short = name if name.endswith(".name") else name.rpartition(".")[2]
        pairs = list(zip(merged.get(short, values), values, strict=True))
        if all(a == b or {a, b} & _UNKNOWN for a, b in pairs):
            merged[short] = [b if a in _UNKNOWN else a for a, b in pairs]
        else:
            merged[name] = values
    return {
        name: [None if v in _UNKNOWN else _words(name, v) for v in values]
        for name, values in merged.items()
        if name not in _NAMES and _differ(groups, values)
    }


def _table(groups: Sequence[Group]) -> dict[str, list[str | None]]:
    """Returns the fields of all groups, with the names that runs of Python have.

    These lack the module of a function, and the folder and suffix of a file of data.
    A group that lacks a field has None.
    """
    configs = [fields(group) for group in groups]
    if any(made_in_python(group.runs[0]) for group in groups):
        for config in configs:
            for name in config.keys() & {*_NAMES, "model.name"}:
                config[name] = config[name].rpartition(":")[2]
            if "dataset" in config:
                config["dataset"] = Path(config["dataset"]).stem
    names = dict.fromkeys(name for config in configs for name in config)
    return {name: [config.get(name) for config in configs] for name in names}


def _differ(groups: Sequence[Group], values: Sequence[str | None]) -> bool:
    """Returns whether a field differs between groups.

    A missing value is a difference between two configurations, or two runs made in
    Python, but not between one and the other.
    """
    if len({*values} - _UNKNOWN) > 1:
        return True
    kinds = [made_in_python(group.runs[0]) for group in groups]
    known = [value not in _UNKNOWN for value in values]
    return len({*zip(kinds, known, strict=True)}) > len({*kinds})


def _words(name: str, value: str) -> str:
    words = name.replace("_", " ").replace(".", " ")
    value = value if len(value) <= _LONGEST else f"{value[: _LONGEST - 1]}…"
    return f"{words} {value}"


def _joined(label: str, words: str | None) -> str:
    return f"{label}, {words}" if words else label


def _told_apart(labels: list[str], words: Sequence[str | None]) -> list[str]:
    """Adds words to labels that are the same, where the words differ."""
    several = _ambiguous(labels, words)
    pairs = zip(labels, words, strict=True)
    return [_joined(x, w) if x in several else x for x, w in pairs]


def _ambiguous(labels: Sequence[str], words: Sequence[str | None]) -> set[str]:
    """Returns the labels that stand beside several words."""
    counts = collections.Counter(x for x, _ in {*zip(labels, words, strict=True)})
    return {label for label, count in counts.items() if count > 1}


def _text(value: Any) -> str:
    if value is None or value == [] or value == "":
        return MISSING
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return " ".join(map(_text, value))
    return str(value)
