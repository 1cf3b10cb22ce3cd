"""Reads a run back: its configuration, its metrics as tables, its models."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.config.build import build_data
from sparsefl_jax.config.defaults import freeze, load_config
from sparsefl_jax.config.fields import Config
from sparsefl_jax.core import keys
from sparsefl_jax.core.algorithm import target
from sparsefl_jax.core.check import UserError, blame, check, integer
from sparsefl_jax.core.types import Key, SparseModel
from sparsefl_jax.report.load import read_records
from sparsefl_jax.runs import checkpoint, folder
from sparsefl_jax.runs.checkpoint import Best
from sparsefl_jax.runs.setup import Setup, build_setup
from sparsefl_jax.runs.simulate import Run
from sparsefl_jax.simulation import initial_state, placement
from sparsefl_jax.simulation.rows import unpack
from sparsefl_jax.sparsity import trees
from sparsefl_jax.wire import model_files


class Result(NamedTuple):
    """The result of a run, finished or not.

    `metrics['train']` and `metrics['eval']` have a column for each key of
    `metrics.jsonl`, nested ones dotted: `metrics['eval']['client_accuracy.mean']`.
    """

    config: Any  # ConfigDict
    metrics: dict[str, Any]  # pandas' DataFrame of each phase
    models: dict[str, SparseModel]  # deployed at the last checkpoint; NumPy leaves
    best: Best | None  # the models of the best evaluation so far of the last stage


def load_run(run: str | Path) -> Result:
    """Reads a run's directory.

    Args:
      run: the directory of a run; with several seeds, that of one of them.

    Raises:
      ValueError: there is no run, no checkpoint yet, or a damaged one.

    Example:
      >>> load_run("no/such/run")
      Traceback (most recent call last):
        ...
      sparsefl_jax.UserError: workdir='no/such/run' has no config.json, expected a run
    """
    import pandas as pd  # only here: it takes a while

    _, saved = _read(run, state=False)
    config = load_config(str(Path(run) / "config.json"))
    records = read_records(Path(run) / "metrics.jsonl")
    metrics = {
        phase: pd.json_normalize([r for r in records if r["phase"] == phase])
        for phase in ("train", "eval")
    }
    return Result(config, metrics, saved.models, saved.snapshot.best)


def _read(run: str | Path, state: bool = True) -> tuple[Config, checkpoint.Saved]:
    """Reads the configuration and the checkpoint of a run."""
    config = folder.read_config(run)
    if config.seeds > 1:
        raise UserError(f"run={str(run)!r} holds several seeds, expected {run}/seed_N")
    saved = checkpoint.read(Path(run), state=state)
    if saved is None:
        raise UserError(f"run={str(run)!r} has no {checkpoint.FILE} yet")
    return config, saved


def load_clients(run: str | Path, clients: Sequence[int]) -> list[dict]:
    """Loads clients' deployed models from the last checkpoint, as `compact` takes them.

    Args:
      run: the directory, as in `load_run`; its data set must be available.
      clients: their ids.

    Returns:
      For each of them a dict of models by name, each a `SparseModel` of NumPy leaves.

    Raises:
      ValueError: there is no such run or client, or there are no personal models.

    Example:
      >>> load_clients("no/such/run", [0])
      Traceback (most recent call last):
        ...
      sparsefl_jax.UserError: workdir='no/such/run' has no config.json, expected a run
    """
    config, saved = _read(run)
    with blame(Path(run) / "config.json"):
        config = freeze(config)
        setup = build_setup(config, build_data(config))
        algorithm = setup.stages[saved.snapshot.stage].algorithm
    if algorithm.personalize is None:
        raise UserError(f"run={str(run)!r} has no personal models")
    key = jax.random.key(config.seed)
    info = placement.client_info(setup.data, setup.budgets)
    for index in clients:
        check("clients", index, integer(0, len(info.index) - 1))
    state = _state(saved, setup, key, clients)
    stage_key = keys.of_stage(keys.of_run(key)[1], saved.snapshot.stage)
    evaluation_key = keys.of_round(stage_key, keys.EVALUATION, saved.snapshot.round)

    def deploy(index):
        row = trees.rows(state.clients.take(np.array([index])), 0)
        client_info = trees.rows(info, index)
        like = jax.eval_shape(algorithm.first_state, key, state.server, client_info)
        client_key = keys.of_client(evaluation_key, index)
        models = algorithm.personalize(
            client_key, state.server, unpack(row, like), client_info
        )
        return {name: jax.tree.map(np.asarray, one) for name, one in models.items()}

    return [deploy(index) for index in clients]


def read_back(run: str | Path, setup: Setup, seed: int) -> Run:
    """Reads the result of `simulate.run` for a run that has ended.

    Args:
      run: the directory.
      setup: of the run.
      seed: of the run.
    """
    _, saved = _read(run)
    state = _state(saved, setup, jax.random.key(seed))
    server = jax.tree.map(jnp.asarray, state.server)
    models = {k: jax.tree.map(jnp.asarray, one) for k, one in saved.models.items()}
    metrics = read_records(Path(run) / "metrics.jsonl")
    return Run(server, state.clients, models, metrics)


def _state(saved: checkpoint.Saved, setup: Setup, key: Key, clients=None):
    """Returns the state of a checkpoint, with a `Store` of rows unless it has all."""
    stage = saved.snapshot.stage
    algorithm = setup.stages[stage].algorithm
    model = initial_state.initial_shapes(setup.model)
    info = placement.client_info(setup.data, setup.budgets)
    shapes = initial_state.shapes(algorithm, model, info)
    state = saved.snapshot.state(shapes)
    kept = state.clients
    if clients is None and len(kept.ids) == len(info.index):
        return state._replace(clients=jax.tree.map(jnp.asarray, kept.rows))
    stage_key = keys.of_stage(keys.of_run(key)[1], stage)
    store = initial_state.open_store(
        stage_key, algorithm, info, 1, None, "disk", kept.first
    )
    store.load(kept, clients)
    return state._replace(clients=store)


def start_from(
    run: str | Path, what: str, seed: int, model, adapter: dict
) -> SparseModel:
    """Loads the model that `init_from` names.

    Args:
      run: the directory of a finished run, or a file of an export.
      what: 'model', 'weights' (nothing pruned) or 'mask' (on fresh weights).
      seed: of the run that is to start, for fresh weights.
      model: the `Model` that is to start from it.
      adapter: the section of its configuration.

    Raises:
      ValueError: the file cannot be read; the run does not exist or has not ended, or
        its server has no trained model, as with SpaFL; or the model has other shapes,
        or adapters of other frozen weights.
    """
    name = f"init_from={str(run)!r}"
    if Path(run).is_file():
        with blame(name):
            _, old = model_files.read_file(run)
    else:
        old = _finished(run, name, what, adapter)
    key, _ = keys.of_run(jax.random.key(seed))
    fresh = initial_state.initial_model(key, model)
    for path, there, here in trees.unlike(old, fresh):
        raise UserError(f"{name} holds {path} of shape {there}, expected {here}")
    old = jax.tree.map(jnp.asarray, old)
    if what == "mask":
        return fresh._replace(mask=old.mask)
    return old if what == "model" else old._replace(mask=fresh.mask)


def _finished(run: str | Path, name: str, what: str, adapter: dict) -> SparseModel:
    """Returns the model of a finished run, after checking that it can be used."""
    if not (Path(run) / "summary.json").exists():
        raise UserError(f"{name}, expected the directory of a finished run, or a file")
    config, saved = _read(run, state=False)
    models, there = saved.models, config.adapter
    free = {"dropout", "charge_base"}
    for field in sorted(adapter.keys() - free) if there["rank"] else ():
        if there[field] != adapter[field]:
            raise UserError(
                f"{name} has adapter.{field}={there[field]!r}, expected "
                f"{adapter[field]!r}, as here"
            )
    if "newcomer" in models and what != "mask":
        raise UserError(
            f"{name} has no trained model at its server, expected init_what='mask'"
        )
    return target(models)


def check_kept(algorithm, initial: SparseModel, what: str) -> None:
    """Checks that the method does not replace the starting mask.

    Raises:
      ValueError: it does; the message names the alternatives.
    """
    key = jax.random.key(0)
    server = algorithm.init(key, initial)
    deployed = target(algorithm.deploy(key, server))
    leaves = (jax.tree.leaves(model.mask) for model in (deployed, initial))
    if not all(np.array_equal(a, b) for a, b in zip(*leaves, strict=True)):
        raise UserError(
            f"init_what={what!r}: the first stage draws a mask of its own, expected "
            "init_what='weights' or a method that keeps the mask it is given"
        )
