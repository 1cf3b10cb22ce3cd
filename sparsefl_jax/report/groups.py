"""Groups runs that differ only in the seed, and finds out which can be compared."""

import collections
import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, Struct

from sparsefl_jax.core.check import UserError, blame
from sparsefl_jax.core.formats import MISSING
from sparsefl_jax.report.load import Run, Table, read_run, run_folders
from sparsefl_jax.system import files
from sparsefl_jax.system.files import Count

STUDY = "study.json"
_SAMPLES = ("x", "y", "x_test", "y_test", "num_classes")
_SAME = {  # checksums in a summary, and the fields that decide where these are unknown
    "data": (_SAMPLES, ("dataset", "num_classes", "scramble")),
    "partition": (
        ("train", "val", "test"),
        ("num_clients", "partition", "partition_seed", "test_split", "val_fraction"),
    ),
}
_DEVICES = ("system", "deadline", "num_clients")


class Group(NamedTuple):
    """Runs of one configuration that differ only in the seed."""

    name: str
    runs: list[Run]
    label: str = ""  # what it is called; '' to call it by what differs
    unlike: str = ""  # in what, such as "partition, metric"; '' if in nothing
    progress: Sequence[Table] = ()  # of each run, see `costs.progress`


# A point's name is that of its folder.
Name = Annotated[str, Meta(pattern=r"^\w[\w.,=+-]{0,199}\Z")]


class Seeds(Struct):
    """The seeds of a point's configuration."""

    seed: Count
    seeds: Annotated[int, Meta(ge=0, le=10_000)]


class Study(Struct):
    """The points of all studies in a folder, and names of those that reports show."""

    points: dict[Name, Seeds]
    labels: dict[str, str] = {}
    shown: list[str] | None = None


def read_groups(run_dirs: Sequence[str | Path]) -> list[Group]:
    """Reads runs and groups those that differ only in the seed.

    A folder whose `seed_*/` hold runs is a group by itself. Other runs form a group if
    their `config.json` are equal except for `seed` and `seeds`. A repeated seed goes
    into another group, because it is not a further sample.

    Args:
      run_dirs: folders of runs, of seeds, or of studies, which stand for their runs.

    Returns:
      The groups, in the order of their first runs. The name of a group is that of its
      first folder, its label what a study has called it.

    Raises:
      ValueError: a folder cannot be read, see `read_run`.

    Example:
      >>> read_groups(["no/such/run"])
      Traceback (most recent call last):
      sparsefl_jax.UserError: run_dir='no/such/run' expected a folder with
      metrics.jsonl.
    """
    members = collections.defaultdict(dict)  # {seed: run} by kind and copy
    found = {}
    for path in run_dirs:
        for run_dir in study_runs(path) or [Path(path)]:
            for folder in run_folders(run_dir):
                found.setdefault(folder.resolve(), (folder, run_dir))
    for folder, run_dir in found.values():
        run = read_run(folder)
        kind, seed = _kind(run, run_dir)
        copy = next(i for i in itertools.count() if seed not in members[kind, i])
        members[kind, copy][seed] = run
    alike = [list(by_seed.values()) for by_seed in members.values()]
    return [
        Group(name, runs, _label(runs))
        for name, runs in zip(_names(alike), alike, strict=True)
    ]


def read_study(folder: Path) -> dict[str, Any]:
    """Returns the content of the file of a study's folder; {} if there is none.

    Its `points` are the configurations of all studies in the folder, `labels` the names
    of those that have one, and `shown` names those of the last study, which reports
    show.

    Raises:
      ValueError: the file is damaged.
    """
    return files.read_optional(folder / STUDY, Study)


def study_runs(folder: str | Path) -> list[Path] | None:
    """Returns the runs of a study that have begun; None if a folder holds no study.

    Raises:
      ValueError: no run has begun, or the study's file is damaged.

    Example:
      >>> study_runs("no/such/study") is None
      True
    """
    folder = Path(folder)
    if not (study := read_study(folder)):
        return None
    runs = []
    for name in study.get("shown") or study["points"]:
        with blame(folder / STUDY):
            seed, seeds = (study["points"][name][key] for key in ("seed", "seeds"))
        runs += [folder / name / f"seed_{seed + i}" for i in range(seeds)]
    begun = [run for run in runs if (run / "metrics.jsonl").is_file()]
    if not begun:
        raise UserError(f"run_dir={str(folder)!r} is a study none of whose runs began")
    return begun


def method_of(run: Run) -> str:
    """Returns the name of a run's method; two stages are joined by a plus sign.

    The module of a method of one's own is left out, as a run made in Python lacks it.
    """
    method = (run.config.get("algorithm") or {}).get("name") or MISSING
    first = (run.config.get("first_stage") or {}).get("name")
    names = [str(name).rpartition(":")[2] for name in (first, method) if name]
    return " + ".join(names)


def made_in_python(run: Run) -> bool:
    """Returns whether a run's parts were made in Python, by `sfl.experiment`."""
    return run.config.get("source") == "python"


def seed_of(run: Run) -> int | str:
    """Returns a run's seed, or the name of its folder if that is unknown."""
    return run.config.get("seed", run.path.resolve().name)


def unlikeness(groups: Sequence[Group]) -> list[str]:
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


def refuse_unlike(groups: Sequence[Group]) -> None:
    """Raises a ValueError that names the first group that is unlike the first.

    Args:
      groups: with labels.

    Raises:
      ValueError: in one line, with what differs.
    """
    names = [f"{str(group.runs[0].path)!r} ({group.label})" for group in groups]
    for name, reason in zip(names, unlikeness(groups), strict=True):
        if reason:
            fair = "metric=clients in all runs, or " * reason.endswith("metric")
            raise UserError(
                f"run {name} has another {reason} than {names[0]}, expected the same; "
                f"{fair}--unlike (unlike=True) compares them all the same"
            )


def apart(group: Group) -> str:
    """Says where a group's seeds differ although they should not; '' if nowhere.

    That is the data, unless a split moves samples from seed to seed, the commit, and
    one's own code. Runs that have not ended do not count.
    """
    config, kept = group.runs[0].config, _SAMPLES
    moves = config.get("test_split") in ("within", "unseen")
    if made_in_python(group.runs[0]) or moves:
        kept = ()
    summaries = [run.summary for run in group.runs]
    values = {
        "data": [[s["data"].get(n) for n in kept] for s in summaries if "data" in s],
        **{n: [s[n] for s in summaries if n in s] for n in ("commit", "code")},
    }
    names = [n for n, of in values.items() if any(value != of[0] for value in of)]
    return f" (seeds differ in {', '.join(names)})" if names else ""


def metric(group: Group) -> str:
    """Returns the metric of the last evaluations, such as 'pooled' or 'pooled rmse'."""
    lasts = [run.evals[-1] for run in group.runs if run.evals]
    words = [[last.get("metric"), last.get("measure")] for last in lasts]
    last = [" ".join(filter(None, pair)) for pair in words]
    return ", ".join(sorted({metric or MISSING for metric in last})) or MISSING


def _kind(run: Run, run_dir: Path) -> tuple[str, int | str | None]:
    """Returns a key that the runs of a group share, and the seed of this run."""
    if run.path != run_dir or not run.config:
        return str(run_dir.resolve()), seed_of(run)
    rest = {k: v for k, v in run.config.items() if k not in ("seed", "seeds")}
    return json.dumps(rest, sort_keys=True), run.config.get("seed")


def _names(groups: Sequence[Sequence[Run]]) -> list[str]:
    """Names groups by their first folders, by the whole path where names are the same.

    `seed_0` and the like have the name of the folder that they are in.
    """
    paths = [runs[0].path.resolve() for runs in groups]
    paths = [p.parent if re.fullmatch(r"seed_\d+", p.name) else p for p in paths]
    names = [path.name for path in paths]
    return [p.name if names.count(p.name) == 1 else str(p) for p in paths]


def _label(runs: Sequence[Run]) -> str:
    """Returns what a study calls the point of its runs POINT/seed_N; '' if nothing."""
    point = runs[0].path.resolve().parent
    return read_study(point.parent).get("labels", {}).get(point.name, "")


def _differences(one: Group, other: Group) -> list[str]:
    """Returns in what two groups are unlike."""
    ones = {seed_of(run): run for run in one.runs}
    pairs = [(ones[s], run) for run in other.runs if (s := seed_of(run)) in ones]
    pairs = pairs or [(one.runs[0], other.runs[0])]
    found = [k for k, of in _SAME.items() if not all(_is_same(*p, *of) for p in pairs)]
    # A study may compare devices, so those of another name are no reason.
    named = [pair for pair in pairs if _same_fields(*pair, _DEVICES)]
    if not all(_is_same(*pair, ("system",), ()) for pair in named):
        found.append("table of devices")
    if len({metric(one), metric(other)} - {MISSING}) > 1:
        found.append("metric")
    return found


def _is_same(one: Run, other: Run, sums: Sequence[str], fields: Sequence[str]) -> bool:
    """Compares checksums of runs of one seed where both have them, else fields.

    Without a common seed some splits move samples, so checksums prove no difference.
    """
    known = [[run.summary.get("data", {}).get(n) for n in sums] for run in (one, other)]
    if seed_of(one) != seed_of(other) or None in (*known[0], *known[1]):
        return _same_fields(one, other, fields)
    return known[0] == known[1]


def _same_fields(one: Run, other: Run, names: Sequence[str]) -> bool:
    if not one.config or not other.config:
        return True
    if made_in_python(one) != made_in_python(other):  # what only one of them knows
        names = [n for n in names if n in ("num_clients", "val_fraction")]
        names = [n for n in names if n in one.config and n in other.config]
    a, b = (
        run.config | {"dataset": Path(str(run.config.get("dataset"))).name}
        for run in (one, other)
    )
    return all(a.get(name) == b.get(name) for name in names)
