"""Checks that runs can be compared: the same data, partition, devices and metric."""

import json
from collections.abc import Sequence
from pathlib import Path

from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.formats import MISSING
from sparsefl_jax.report.comparison.evaluations import seed_of
from sparsefl_jax.report.comparison.groups import Group, made_in_python
from sparsefl_jax.report.load import Run

_SAMPLES = ("x", "y", "x_test", "y_test", "num_classes")  # checksums in a summary
_ROWS, _DEVICES = ("train", "val", "test"), ("system",)
# Fields that decide for runs without checksums or without a seed in common.
_DATA_FIELDS = ("dataset", "num_classes", "scramble")
_PARTITION_FIELDS = (
    *("num_clients", "partition", "partition_seed"),
    *("test_split", "val_fraction"),
)
_DEVICE_FIELDS = ("system", "deadline", "num_clients")


def unlike(groups: Sequence[Group]) -> list[str]:
    """Names where each group is unlike the first: data, partition, devices, metric.

    Partitions may differ from seed to seed, so runs of the same seed are compared, by
    the checksums in their summaries. Runs without a seed in common, and those that have
    not ended, are compared by their configurations.

    Args:
      groups: as `read_groups` returned them.

    Returns:
      One text a group, such as "partition, metric"; '' if it is like the first.
    """
    return [", ".join(_differences(groups[0], group)) for group in groups]


def refuse_unlike(groups: Sequence[Group], labels: Sequence[str]) -> None:
    """Raises a ValueError that names the first group that is unlike the first.

    Raises:
      ValueError: in one line, with what differs.
    """
    for group, label, reason in zip(groups, labels, unlike(groups), strict=True):
        if reason:
            raise UserError(
                f"run {str(group.runs[0].path)!r} ({label}) has another {reason} than "
                f"{str(groups[0].runs[0].path)!r} ({labels[0]}), expected the same; "
                "--unlike (unlike=True) compares them all the same"
            )


def apart(group: Group) -> str:
    """Says where a group's seeds differ although they should not; '' if nowhere.

    That is the data, unless a split moves samples from seed to seed, the commit, and
    one's own code. Runs that have not ended do not count.
    """
    config, kept = group.runs[0].config, _SAMPLES
    if made_in_python(group.runs[0]) or config.get("test_split") == "within":
        kept = ()
    summaries = [run.summary for run in group.runs]
    values = {
        "data": [[s["data"].get(n) for n in kept] for s in summaries if "data" in s],
        **{n: [s[n] for s in summaries if n in s] for n in ("commit", "code")},
    }
    names = [n for n, of in values.items() if any(value != of[0] for value in of)]
    return f" (seeds differ in {', '.join(names)})" if names else ""


def metric(group: Group) -> str:
    """Returns the metric of the last evaluations, 'pooled' or 'clients'."""
    last = [run.evals[-1].get("metric") for run in group.runs if run.evals]
    return ", ".join(sorted({metric or MISSING for metric in last})) or MISSING


def _differences(one: Group, other: Group) -> list[str]:
    ones = {seed_of(run): run for run in one.runs}
    same_seed = [(ones[s], run) for run in other.runs if (s := seed_of(run)) in ones]
    pairs = same_seed or [(one.runs[0], other.runs[0])]
    alike = {
        "data": all(_same(*pair, _SAMPLES, _DATA_FIELDS) for pair in pairs),
        "partition": all(_same(*pair, _ROWS, _PARTITION_FIELDS) for pair in pairs),
        # A study may compare devices, so those of another name are no reason.
        "table of devices": all(
            not _same_fields(*pair, _DEVICE_FIELDS) or _same(*pair, _DEVICES, ())
            for pair in same_seed
        ),
        "metric": len({metric(one), metric(other)} - {MISSING}) < 2,
    }
    return [name for name, same in alike.items() if not same]


def _same(one: Run, other: Run, sums: Sequence[str], fields: Sequence[str]) -> bool:
    """Compares checksums of runs of one seed where both have them, else fields.

    Without a common seed some splits move samples, so checksums prove no difference.
    """
    known = [[run.summary.get("data", {}).get(n) for n in sums] for run in (one, other)]
    if seed_of(one) != seed_of(other) or None in (*known[0], *known[1]):
        return _same_fields(one, other, fields)
    return known[0] == known[1]


def _same_fields(one: Run, other: Run, names: Sequence[str]) -> bool:
    def value(run: Run, name: str) -> str:
        value = run.config.get(name)
        if name == "dataset" and value is not None:
            value = Path(str(value)).name
        return json.dumps(value, sort_keys=True)

    if not one.config or not other.config:
        return True
    if made_in_python(one) != made_in_python(other):  # what only one of them knows
        names = [n for n in names if n in ("num_clients", "val_fraction")]
        names = [n for n in names if n in one.config and n in other.config]
    return all(value(one, name) == value(other, name) for name in names)
