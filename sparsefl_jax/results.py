"""A run read back: its configuration, its metrics as arrays, its models."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax import checkpoint, checks, workdir
from sparsefl_jax.sparsity import masks
from sparsefl_jax.types import Key, SparseModel


class Result(NamedTuple):
    """What a run left, finished or not.

    `metrics['train']` and `metrics['eval']` hold an array [records, ...] for each key
    of `metrics.jsonl`, nested ones dotted: `metrics['eval']['client_accuracy.mean']`.
    """

    config: Any  # ConfigDict
    metrics: dict[str, dict[str, np.ndarray]]
    models: dict[str, SparseModel]  # deployed at the last checkpoint; NumPy leaves
    best: dict[str, SparseModel]  # of the best evaluation of the last stage, or {}


def load(run: str | Path) -> Result:
    """Reads a run's directory.

    Args:
      run: the directory; of several seeds, that of one of them.

    Raises:
      ValueError: in one line, if there is no run, no checkpoint yet, or a damaged one.

    Example:
      >>> load("no/such/run")
      Traceback (most recent call last):
        ...
      ValueError: workdir='no/such/run', expected the directory of a run
    """
    run = Path(run)
    config = workdir.read_config(run)
    if config.get("seeds", 1) > 1:
        raise ValueError(f"run={str(run)!r} holds several seeds, expected {run}/seed_N")
    saved = checkpoint.read(run)
    if saved is None:
        raise ValueError(f"run={str(run)!r} has no checkpoint yet")
    best = saved.snapshot.best
    metrics = arrays(read_metrics(run / "metrics.jsonl"))
    return Result(config, metrics, saved.models, best.models if best else {})


def read_metrics(path: Path) -> list[dict]:
    """The records of a `metrics.jsonl`."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def arrays(records: list[dict]) -> dict[str, dict[str, np.ndarray]]:
    """Records as arrays, by phase and key; NaN where a record lacks the key.

    Example:
      >>> arrays([{'phase': 'train', 'loss': 2.0}, {'phase': 'train', 'loss': 1.0}])
      {'train': {'loss': array([2., 1.])}, 'eval': {}}
    """
    told = {}
    for phase in ("train", "eval"):
        flat = [workdir.flatten(r) for r in records if r["phase"] == phase]
        names = dict.fromkeys(name for r in flat for name in r if name != "phase")
        told[phase] = {name: _array([r.get(name) for r in flat]) for name in names}
    return told


def _array(values: list) -> np.ndarray:
    lengths = {len(v) if isinstance(v, list) else None for v in values}
    if len(lengths) > 1 and lengths != {None}:  # cohorts of different stages
        return np.array([*values, None], object)[:-1]
    return np.array([np.nan if v is None else v for v in values])


def start_from(run: str | Path, what: str, key: Key, model) -> SparseModel:
    """What `init_from` names, as the first stage's start.

    Args:
      run: the directory of a run.
      what: 'model', 'weights' (nothing pruned) or 'mask' (on fresh weights).
      key: for fresh weights; as `loop.segments` splits it off.
      model: the `Model` that is to start.

    Raises:
      ValueError: there is no such run, or its model has other shapes.
    """
    old = list(load(run).models.values())[-1]
    shapes = jax.eval_shape(lambda key: checks.initial_model(key, model), key)
    kinds = [
        {
            p: v.shape
            for p, v in zip(masks.leaf_paths(t), jax.tree.leaves(t), strict=True)
        }
        for t in (old, shapes)
    ]
    if kinds[0] != kinds[1]:
        other = next(
            p for p in kinds[0] | kinds[1] if kinds[0].get(p) != kinds[1].get(p)
        )
        raise ValueError(
            f"init_from={str(run)!r} holds {other} of shape {kinds[0].get(other)}, "
            f"expected {kinds[1].get(other)}"
        )
    old = jax.tree.map(jnp.asarray, old)
    if what == "model":
        return old
    if what == "weights":
        return old._replace(mask=masks.full(old.params))
    fresh = checks.initial_model(key, model)
    return fresh._replace(params=masks.apply(fresh.params, old.mask), mask=old.mask)
