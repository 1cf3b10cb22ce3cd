"""Finds where the configurations of runs differ, and labels runs by it."""

import collections
from collections.abc import Sequence
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
_DENSITIES = ("algorithm.density", "first_stage.density", "density")


class Fields(NamedTuple):
    """The fields of the configurations of groups, by dotted name.

    Arguments that only some methods have, with the same value for all of these, follow
    from the method's name and are no settings, nor are the names of methods.
    """

    differing: dict[str, list[str]]  # of each group, "-" if it lacks the field
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
    configs = [fields(group) for group in groups]
    for name in dict.fromkeys(name for config in configs for name in config):
        values = [config.get(name) for config in configs]
        shown = [value or MISSING for value in values]
        if len({*shown}) == 1:
            shared[name] = shown[0]
            continue
        differing[name] = shown
        if name not in _NAMES and len({*values} - {None}) > 1:
            settings[name] = shown
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
    density = [_words("density", _density(group)) for group in groups]
    if len({*density}) > 1:
        labels = [x + w for x, w in zip(labels, density, strict=True)]
    for name, values in compare_fields(groups).settings.items():
        labels = _told_apart(labels, [_words(name, value) for value in values])
    labels = [group.label or label for group, label in zip(groups, labels, strict=True)]
    return _told_apart(labels, [f", {group.name}" for group in groups])


def _density(group: Group) -> str:
    """Returns the density of the method, else of its first stage or of the run."""
    known = fields(group)
    densities = (known.get(name, MISSING) for name in _DENSITIES)
    return next((value for value in densities if value != MISSING), MISSING)


def _words(name: str, value: str) -> str:
    """Returns words such as ", density 0.05"; '' for no value."""
    whole = name.startswith("first_stage.") or name.endswith(".name")
    words = name if whole else name.rpartition(".")[2]
    words = words.replace("_", " ").replace(".", " ")
    return "" if value == MISSING else f", {words} {value}"


def _told_apart(labels: list[str], words: Sequence[str]) -> list[str]:
    """Adds words to labels that are the same, where the words differ."""
    several = _ambiguous(labels, words)
    pairs = zip(labels, words, strict=True)
    return [x + w if x in several else x for x, w in pairs]


def _ambiguous(labels: Sequence[str], words: Sequence[str]) -> set[str]:
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
