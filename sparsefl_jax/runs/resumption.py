"""Resumes runs: checks what must be unchanged, and allows what may change.

The rounds after a checkpoint are those of a run that never stopped. So the content of
the data and the configuration are compared with those of the checkpoint. Only the
evaluation interval and the end of the run may change: more rounds extend its last
stage, and schedules keep the horizon that they were planned for.
"""

import importlib
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import jax

from sparsefl_jax.data import federated
from sparsefl_jax.runs import checkpoint, run_directory
from sparsefl_jax.runs.config import defaults
from sparsefl_jax.runs.config.defaults import replaced, stages
from sparsefl_jax.runs.setup import Setup
from sparsefl_jax.runs.simulate import Snapshot
from sparsefl_jax.system import log_lines, processes


class Found(NamedTuple):
    """The contents of a run's directory."""

    done: bool  # nothing is left to run
    config: SimpleNamespace  # with which the run continues
    saved: checkpoint.Saved | None  # the checkpoint; None to begin
    said: list[str]  # lines on what differs from an ordinary continuation
    lost: list[str]  # lines on what is missing from its logs


def find(
    path: Path,
    config,
    extend_at_final: bool = False,
    accept_lost_records: bool = False,
) -> Found:
    """Reads a run's directory and changes nothing there.

    Args:
      path: the directory, with a `config.json`.
      config: with which the run is to continue, as `plain.values` returns it.
      extend_at_final: whether it may have more rounds although its method's schedule
        has ended.
      accept_lost_records: whether it may continue although its logs are incomplete.

    Raises:
      ValueError: in one line, if the run cannot continue.
    """
    ended = (path / "summary.json").exists()
    changed = run_directory.differences(run_directory.read_config(path), config)
    if ended and not changed.keys() - set(run_directory.FREE):
        return Found(True, config, None, [], [])
    saved = checkpoint.read(path, jax.random.key(config.seed))
    if saved is None:
        if ended:
            raise ValueError(f"workdir={str(path)!r} has no checkpoint to extend")
        return Found(False, config, None, [], [])
    found = settle(config, saved, extend_at_final)
    by = found.saved.snapshot.ended_by
    if ended and by:
        return found._replace(done=True, said=[f"this run has ended, by {by}"])
    lost = log_lines.lost(path, saved.about["position"])
    if lost and not accept_lost_records:
        raise ValueError(
            f"workdir={str(path)!r}: {'; '.join(lost)}; --accept_lost_records goes on "
            "from the checkpoint without them"
        )
    said = [*found.said, *(f"going on without records: {line}" for line in lost)]
    return found._replace(said=said, lost=lost)


def settle(config, saved: checkpoint.Saved, extend_at_final: bool = False) -> Found:
    """Decides how a run continues from a checkpoint with a configuration.

    More rounds extend the last stage; first stage and learning rate stay as planned. A
    run that had ended continues if the limit that ended it was lifted.

    Args:
      config, extend_at_final: as in `find`.
      saved: the checkpoint.

    Raises:
      ValueError: in one line: another field differs from the checkpoint's, there are
        fewer rounds, or the method's own schedule has ended.
    """
    old, at = saved.about["config"], saved.snapshot
    differs = run_directory.difference(old, config)
    if differs:
        raise ValueError(f"the configuration is not that of the checkpoint: {differs}")
    before, now = old["num_rounds"], config.num_rounds
    if now < before:
        raise ValueError(
            f"num_rounds={now}, expected at least the {before} that the run has been "
            "planned for; until ends it earlier"
        )
    config, said = planned(config, old)
    schedule = config.algorithm.get("rounds")
    if (
        now > before
        and schedule is not None
        and schedule <= before
        and not extend_at_final
    ):
        raise ValueError(
            f"num_rounds={now}: the schedule of {config.algorithm['name']} has ended, "
            f"algorithm.rounds={schedule}, expected --extend_at_final to stay at "
            "its end"
        )
    changed = run_directory.differences(old, config)
    changed = [
        f"{name} {was!r} -> {is_!r}"
        for name, (was, is_) in changed.items()
        if name in run_directory.LATER and name != "first_stage.num_rounds"
    ]
    said = [f"from here on {', '.join(changed)}"] * bool(changed) + said
    if at.ended_by and _lifted(old, config, at):
        done = at.stage == len(stages(config)) - 1 and at.round == config.num_rounds
        at = at._replace(ended_by="rounds" if done else "")
    return Found(False, config, saved._replace(snapshot=at), said, [])


def planned(config, old: dict) -> tuple[SimpleNamespace, list[str]]:
    """Fixes the fields that would follow a changed `num_rounds` at their old values.

    A first stage that has as many rounds as the run keeps its old ones, and a learning
    rate that decays over the run its old horizon.

    Args:
      config: the configuration with which a run continues.
      old: its configuration so far, as `plain` returns it.

    Returns:
      The configuration with these fields set, and lines that report them.

    Raises:
      ValueError: in one line, if the configuration sets one of them otherwise.
    """
    if config.first_stage:
        before = old["first_stage"].get("num_rounds") or old["num_rounds"]
        now = config.first_stage.get("num_rounds")
        if now is not None and now != before:
            raise ValueError(
                f"first_stage.num_rounds={now}, expected {before}, as the run began "
                "with"
            )
        if config.num_rounds != before:
            first = config.first_stage | {"num_rounds": before}
            config = replaced(config, first_stage=first)
    if config.final_learning_rate is None or config.lr_decay is not None:
        return config, []
    before = old["lr_horizon"] or old["num_rounds"]
    if config.lr_horizon is None and config.num_rounds != before:
        return replaced(config, lr_horizon=before), [
            f"the learning rate keeps its schedule over {before} rounds, and falls "
            f"below final_learning_rate={config.final_learning_rate:g} after them; "
            "lr_horizon gives it another"
        ]
    now = config.lr_horizon or config.num_rounds
    if now != before and config.num_rounds == old["num_rounds"]:
        raise ValueError(f"lr_horizon={now}, expected {before}, as the run began with")
    return config, []


def _lifted(old: dict, config, at: Snapshot) -> bool:
    """Tells whether the limit that ended a run was lifted."""
    if at.ended_by == "rounds":
        return config.num_rounds > old["num_rounds"]
    limit, spent = config.until[at.ended_by], old["until"][at.ended_by]
    costs = {"gbit": at.bits / 1e9, "pflop": at.flops / 1e15, "hours": at.hours}
    spent = costs.get(at.ended_by, spent)
    return limit is None or limit > spent


def start(saved: checkpoint.Saved | None, setup: Setup) -> tuple[Snapshot, dict]:
    """Returns where a run begins or continues, the same for all processes.

    Args:
      saved: the checkpoint, if there is one.
      setup: the run.

    Returns:
      The snapshot, and the fingerprint of the data and devices, which a checkpoint
      keeps.

    Raises:
      ValueError: in one line: data or devices are not those of the checkpoint, or
        processes differ.
    """
    at = saved.snapshot if saved else Snapshot()
    found = fingerprint(setup.data)
    if setup.system is not None:  # the file of a table may have changed
        found["system"] = checkpoint.checksum(setup.system)
    processes.check_same("the checkpoint", [at.stage, at.round, at.bits])
    processes.check_same("the data set", found)
    old = saved.about["data"] if saved else found
    changed = [name for name in old | found if old.get(name) != found.get(name)]
    if changed:
        raise ValueError(
            f"what the run reads is not that of the checkpoint: {', '.join(changed)} "
            "changed, expected the arrays, partition and devices that it began with"
        )
    return at, found


def fingerprint(data) -> dict[str, int]:
    """Computes a checksum of every field of a `FederatedData` except its name.

    Clients' tables count without their padding.

    Example:
      >>> from sparsefl_jax import data
      >>> x, y = [[0.0], [1.0]], [0, 1]
      >>> one, other = (data.from_arrays(x, y, num_clients=1, num_classes=n,
      ...     x_test=x, y_test=y) for n in (2, 3))
      >>> old, new = fingerprint(one), fingerprint(other)
      >>> [name for name in old if old[name] != new[name]]
      ['num_classes']
    """
    bare = federated.padded(data, [max(1, rows.size.max()) for rows in data[-3:]])
    fields = bare._asdict().items()
    return {k: checkpoint.checksum(v) for k, v in fields if k != "name"}


def own_code(config: dict) -> dict[str, int]:
    """Computes checksums of the files of methods, networks, partitions of one's own.

    Args:
      config: as `plain` returns it; `module:function` is one's own.
    """
    checksums = {}
    for name in (config[section].get("name") for section in defaults.TABLES):
        if name is not None and ":" in name:
            module = importlib.import_module(name.partition(":")[0])
            if path := getattr(module, "__file__", None):
                checksums[path] = zlib.crc32(Path(path).read_bytes())
    return checksums


def describe(saved: checkpoint.Saved, now: dict) -> str:
    """Says where a run continues, and whether its results will be bit for bit the same.

    Args:
      saved: the checkpoint.
      now: the machine and versions of today, from `provenance.facts`, and `own_code`.
    """
    then, at = saved.about["machine"], saved.snapshot
    changed = [f"{k} {then.get(k)} -> {now[k]}" for k in now if then.get(k) != now[k]]
    exactness = f"not bit for bit: {', '.join(changed)}" if changed else "bit for bit"
    return f"resuming after round {at.round} of stage {at.stage}, {exactness}"
