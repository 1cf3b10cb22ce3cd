"""How a run goes on: what has to be as it was, and what may change meanwhile.

The rounds that follow a checkpoint are those that the run would have had if it had
never stopped. So the data are compared, by their content, and the configuration with
that of the checkpoint. When the run is evaluated and when it ends may change: more
rounds extend its last stage, and what was planned over the rounds of old stays.
"""

import copy
from pathlib import Path
from typing import NamedTuple

import jax

from sparsefl_jax.runs import checkpoint, run_directory
from sparsefl_jax.runs.loop import Snapshot
from sparsefl_jax.system import log_lines, processes


class Found(NamedTuple):
    """What a run's directory holds."""

    done: bool  # nothing is left to run
    config: object  # ConfigDict, what the run goes on by
    saved: checkpoint.Saved | None  # the checkpoint; None to begin
    said: list[str]  # what differs from an ordinary continuation, a line each
    lost: list[str]  # what is missing of its logs


def find(
    path: Path,
    config,
    extend_at_final: bool = False,
    accept_lost_records: bool = False,
) -> Found:
    """Looks at what a run's directory holds, and changes nothing there.

    Args:
      path: the directory, with a `config.json`.
      config: what the run is to go on by, a `ConfigDict`.
      extend_at_final: whether it may have more rounds although its method's schedule
        has ended.
      accept_lost_records: whether it may go on although its logs are not whole.

    Raises:
      ValueError: in one line, where it can not go on.
    """
    ended = (path / "summary.json").exists()
    old = checkpoint.config(path) if ended else None
    changed = run_directory.differences(old or run_directory.read_config(path), config)
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
    """Decides how a run goes on from a checkpoint by a configuration.

    With more rounds its last stage goes on, first stage and learning rate as they were
    planned; a run that had ended goes on if what ended it no longer does.

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
    own = config.algorithm.get("rounds")
    if now > before and own is not None and own <= before and not extend_at_final:
        raise ValueError(
            f"num_rounds={now}: the schedule of {config.algorithm.name} has ended, "
            f"algorithm.rounds={own}, expected --extend_at_final to stay at its end"
        )
    changed = run_directory.differences(old, config)
    changed = [
        f"{name} {was!r} -> {is_!r}"
        for name, (was, is_) in changed.items()
        if name in run_directory.LATER and name != "first_stage.num_rounds"
    ]
    said = [f"from here on {', '.join(changed)}"] * bool(changed) + said
    if at.ended_by and _lifted(old, config, at):
        at = at._replace(ended_by="")
        if at.stage == bool(config.first_stage) and at.round == config.num_rounds:
            at = at._replace(ended_by="rounds")
    return Found(False, config, saved._replace(snapshot=at), said, [])


def planned(config, old: dict) -> tuple:
    """A configuration that keeps what was planned over the rounds of an older one.

    Args:
      config: what a run goes on by, a `ConfigDict`.
      old: what it has gone by, as `run_directory.plain` gives it.

    Returns:
      A configuration with fields set that would else follow its `num_rounds`, and lines
      that say so.

    Raises:
      ValueError: in one line, if it plans them anew.
    """
    config = copy.deepcopy(config)
    _keep_first_stage(config, old)
    return config, _keep_horizon(config, old)


def _keep_first_stage(config, old: dict) -> None:
    """A first stage whose rounds are those of the run keeps those of old."""
    if not config.first_stage:
        return
    before = old["first_stage"].get("num_rounds") or old["num_rounds"]
    now = config.first_stage.get("num_rounds")
    if now is not None and now != before:
        raise ValueError(
            f"first_stage.num_rounds={now}, expected {before}, as the run began with"
        )
    if config.num_rounds != before:
        with config.ignore_type(), config.unlocked():
            config.first_stage.num_rounds = before


def _keep_horizon(config, old: dict) -> list[str]:
    """A learning rate that is to decay over the run does so over the rounds of old."""
    if config.final_learning_rate is None or config.lr_decay is not None:
        return []
    before = old["lr_horizon"] or old["num_rounds"]
    if config.lr_horizon is None and config.num_rounds != before:
        config.lr_horizon = before
        return [
            f"the learning rate keeps its schedule over {before} rounds, and falls "
            f"below final_learning_rate={config.final_learning_rate:g} after them; "
            "lr_horizon gives it another"
        ]
    now = config.lr_horizon or config.num_rounds
    if now != before and config.num_rounds == old["num_rounds"]:
        raise ValueError(f"lr_horizon={now}, expected {before}, as the run began with")
    return []


def _lifted(old: dict, config, at: Snapshot) -> bool:
    """Whether what ended a run no longer does."""
    if at.ended_by == "rounds":
        return config.num_rounds > old["num_rounds"]
    limit, spent = config.until[at.ended_by], old["until"][at.ended_by]
    spent = {"gbit": at.bits / 1e9, "pflop": at.flops / 1e15}.get(at.ended_by, spent)
    return limit is None or limit > spent


def start(saved: checkpoint.Saved | None, stages, data) -> tuple[Snapshot, dict]:
    """Where a run begins or goes on, the same for all processes.

    Args:
      saved: the checkpoint, if there is one.
      stages: those of the run.
      data: a `FederatedData`.

    Returns:
      The snapshot, and what a checkpoint keeps to know the data by.

    Raises:
      ValueError: in one line: the data are not those of the checkpoint, it stands where
        the stages do not lead, or processes differ.
    """
    at = saved.snapshot if saved else Snapshot(0, 0, None, 0, 0.0)
    found = fingerprint(data)
    processes.check_same("the checkpoint", [at.stage, at.round, at.bits])
    processes.check_same("the data set", found)
    if saved:
        _check(saved, stages, found)
    return at, found


def fingerprint(data) -> dict[str, int]:
    """A checksum of every field of a `FederatedData`, arrays and tables, but its name.

    Example:
      >>> from sparsefl_jax import data
      >>> x, y = [[0.0], [1.0]], [0, 1]
      >>> one, other = (data.from_arrays(x, y, num_clients=1, num_classes=n,
      ...     x_test=x, y_test=y) for n in (2, 3))
      >>> old, new = fingerprint(one), fingerprint(other)
      >>> [name for name in old if old[name] != new[name]]
      ['num_classes']
    """
    fields = data._asdict().items()
    return {k: checkpoint.checksum(v) for k, v in fields if k != "name"}


def _check(saved: checkpoint.Saved, stages, data: dict[str, int]) -> None:
    """Refuses other data, and a place that the stages do not have."""
    old = saved.about["data"]
    changed = [name for name in old | data if old.get(name) != data.get(name)]
    if changed:
        raise ValueError(
            f"the data set is not that of the checkpoint: {', '.join(changed)} "
            "changed, expected the arrays and the partition that the run began with"
        )
    at = saved.snapshot
    lengths = [stage.num_rounds for stage in stages]
    there = 0 <= at.stage < len(lengths) and 0 <= at.round <= lengths[at.stage]
    if not there or at.bits < 0 or not 0 <= at.flops < float("inf"):
        raise ValueError(
            f"the checkpoint stands at stage {at.stage}, round {at.round}, {at.bits} "
            f"bits and {at.flops} FLOPs, expected a place in stages of {lengths} rounds"
        )


def describe(saved: checkpoint.Saved, now: dict) -> str:
    """Says where a run goes on, and whether it will be as if it had never stopped.

    Args:
      saved: the checkpoint.
      now: what it is to run on, as `provenance.facts` tells.
    """
    then, at = saved.about["machine"], saved.snapshot
    changed = [f"{k} {then.get(k)} -> {now[k]}" for k in now if then.get(k) != now[k]]
    how = f"to rounding, for {', '.join(changed)}" if changed else "bit for bit"
    return f"resuming after round {at.round} of stage {at.stage}, {how}"
