"""Exports the model of a run as a file."""

from collections.abc import Sequence
from pathlib import Path

import jax

from sparsefl_jax import models
from sparsefl_jax.config import build
from sparsefl_jax.config.defaults import freeze
from sparsefl_jax.config.fields import Config, Described
from sparsefl_jax.core.check import UserError, blame, check
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.export.sparse_file import Sizes, save_sparse
from sparsefl_jax.runs import folder as run_folder
from sparsefl_jax.runs import results
from sparsefl_jax.simulation.inference import make_recalibration
from sparsefl_jax.sparsity import masks


def export_run(
    run: str | Path,
    path: str | Path | None = None,
    *,
    index: str = "bitmap",
    name: str | None = None,
    client: int | None = None,
    best: bool = False,
) -> tuple[Path, Sizes]:
    """Writes the model that a run deploys, as a file that `load_sparse` reads.

    A built-in network can be used elsewhere with the file alone, except for a
    `pretrained_encoder`, which needs its folder again. Of a network of your own the
    file has the weights alone.

    Static normalisation statistics are first computed from the pooled training samples,
    as before an evaluation. A table's mean and deviation are in the file: its network
    takes raw columns. Adapters are added to the kernels beside them, so that the file
    has the parameters of the network without adapters, none of them pruned. Of these, a
    run of `sfl.experiment` has the mean and deviation alone, because its network and
    data are not in its folder.

    Args:
      run: the directory of a run, finished or not; its data set has to be available,
        unless `sfl.experiment` made it.
      path: the file; None for `model.safetensors` or `client_K.safetensors` in the
        run's directory.
      index: as in `save_sparse`.
      name: the name of a deployed model; None for the first.
      client: the id of a client, for its own model; None for the server's.
      best: whether to take the server's models of the best evaluation, not the last.

    Returns:
      The file's path and `Sizes`.

    Raises:
      ValueError: there is no such run, model, client or index; the folder holds several
        seeds; `best` comes with a client or before an evaluation; a run of
        `sfl.experiment` has adapters or static statistics, or a client is given; or
        safetensors is missing.
      OSError: the file cannot be written.

    Example:
      >>> export_run("no/such/run")
      Traceback (most recent call last):
        ...
      sparsefl_jax.UserError: workdir='no/such/run' has no config.json, expected a run
    """
    config = run_folder.read_config(run)
    deployed = _list_models(run, client, best)
    if name is None:
        name = next(iter(deployed))
        if name == "newcomer":
            raise UserError("no trained model, expected a client, or name='newcomer'")
    check("name", name, sorted(deployed))
    finish = _from_python if isinstance(config, Described) else _from_configuration
    with blame(Path(run) / "config.json"):
        sparse, network, reading = finish(config, deployed[name])
    if path is None:
        file = "model" if client is None else f"client_{client}"
        path = Path(run) / f"{file}.safetensors"
    sizes = save_sparse(
        path,
        sparse,
        index=index,
        network=network,
        reading=reading,
        run={
            "method": config.algorithm["name"],
            "dataset": config.dataset,
            "seed": config.seed,
            "name": name,
            "client": client,
            "best": best,
        },
    )
    return Path(path), sizes


def _from_configuration(config: Config, sparse: SparseModel) -> tuple:
    """Returns a model that is ready to be used, its network, and how that reads."""
    config = freeze(config)
    data = build.build_data(config)
    model = build.build_model(config, data)
    if model.static_stats:
        renew = make_recalibration(model, data.x[data.train.gather()])
        sparse = renew(jax.random.key(config.seed), sparse)
    if model.merged is not None:
        params = model.merged(masks.apply(sparse.params, sparse.mask))
        sparse = masks.dense(params, sparse.stats)
    network = build.describe_network(config, data)
    reading = build.describe_reading(config, data, model)
    return sparse, network, _scaled(reading, data.scaling)


def _scaled(reading: dict, scaling: Sequence | None) -> dict:
    """Returns how a network reads raw columns, which a run standardised before."""
    return reading | dict(zip(("mean", "std"), scaling or (), strict=False))


def _from_python(config: Described, sparse: SparseModel) -> tuple:
    """Does the same for a run of `sfl.experiment`, from what describes its model."""
    facts = ("parameters", "loss", "reading")
    network = {k: v for k, v in config.model.items() if k not in facts}
    if "adapter" in network:
        raise UserError("its network has adapters, expected save_sparse with `merged`")
    if "scaling" in network:  # the one that `for_task` gave it
        (network["outputs"],) = network.pop("scaling")
    steps = config.model.get("reading", ())
    plain = [step for step in steps if step["name"] == "make_preprocess"][:1]
    if network["name"] not in models.MODELS or list(steps) != plain:
        return sparse, None, None  # the weights alone
    if models.build(**network).static_stats:
        raise UserError("its network has static statistics, which need its data")
    more = ("name", "augment")
    reading = {k: v for step in plain for k, v in step.items() if k not in more}
    return sparse, network, _scaled(reading, config.scaling) or None


def _list_models(run: str | Path, client: int | None, best: bool) -> dict:
    """Returns the models to choose from, by name."""
    if client is not None:
        if best:
            raise UserError(f"best=True with client={client}, expected one of them")
        return results.load_clients(run, [client])[0]
    result = results.load_run(run)
    if not best:
        return result.models
    if result.best is None:
        raise UserError(f"run={str(run)!r} has no evaluation yet, expected best=False")
    return result.best.models
