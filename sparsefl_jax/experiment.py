"""A configuration becomes a run with files: metrics, timing, summary, plots, a table.

Every name in a configuration is checked, and every object built, before anything is
compiled. The files of a run are described in the README.
"""

import contextlib
import difflib
import importlib
import importlib.metadata
import inspect
import json
import platform
import subprocess
import time
from pathlib import Path

import jax
import numpy as np
import optax

from sparsefl_jax import algorithms, local, loop, models, report, simulate
from sparsefl_jax import data as datasets
from sparsefl_jax.algorithm import Stage
from sparsefl_jax.progress import Progress

VERSIONS = ("jax", "jaxlib", "flax", "optax", "numpy")


def default_config():
    """All fields of a configuration, as a locked `ConfigDict`.

    A file in `configs/` starts from here. The sub-dictionaries `model`, `partition`,
    `algorithm`, `first_stage` and `optimizer` take the keyword arguments of what their
    `name` names. `density` is for configurations to refer to; `budgets` holds pairs of
    a budget and the share of clients that have it.
    """
    from ml_collections import config_dict

    return config_dict.create(
        seed=0,
        dataset="cifar10_sample",
        data_dir=config_dict.placeholder(str),
        num_clients=100,
        partition=config_dict.create(name="iid"),
        partition_seed=config_dict.placeholder(int),
        val_fraction=0.0,
        augment=(),
        input_scale=255.0,
        normalize=True,
        model=config_dict.create(name="small_cnn"),
        algorithm=config_dict.create(name="fedavg"),
        first_stage=config_dict.create(),
        optimizer=config_dict.create(name="sgd", learning_rate=0.1),
        final_learning_rate=config_dict.placeholder(float),
        lr_horizon=config_dict.placeholder(int),
        lr_delay=0,
        budgets=(),
        density=config_dict.placeholder(float),
        num_rounds=100,
        cohort_size=10,
        epochs=1,
        batch_size=32,
        eval_every=10,
        chunk="auto",
    )


def _lookup(kind: str, name: str, table: dict):
    """The entry of a table of names, or one line with what there is."""
    if name in table:
        return table[name]
    near = difflib.get_close_matches(str(name), table, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(
        f"{kind}={name!r}{hint}, expected one of {', '.join(sorted(table))}"
    )


def _factory(name: str):
    """An exported algorithm, or anyone's own as `module:function`."""
    if ":" not in name:
        return _lookup("algorithm.name", name, algorithms.ALGORITHMS)
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"algorithm.name={name!r}: {error}") from None


def _optional(value):
    """Configurations hold lists where the code has tuples."""
    return tuple(value) if isinstance(value, list) else value


def build_algorithm(settings: dict, loss_fn, optimizer):
    """An algorithm from `name` and keyword arguments.

    Raises:
      ValueError: on an unknown name, argument, or a density outside (0, 1].
    """
    settings = {key: _optional(value) for key, value in settings.items()}
    name = settings.pop("name")
    factory = _factory(name)
    parameters = inspect.signature(factory).parameters
    accepts_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    allowed = [p for p in parameters if p not in ("loss_fn", "optimizer", "kwargs")]
    for key, value in settings.items():
        if key not in allowed and not accepts_any:
            _lookup(f"algorithm.{name} argument", key, dict.fromkeys(allowed))
        for number in np.ravel(value) if key in ("density", "densities") else ():
            if not 0 < number <= 1:
                raise ValueError(f"algorithm.{key}={value}, expected in (0, 1]")
    for key, parameter in parameters.items():
        missing = key in allowed and key not in settings
        if missing and parameter.default is parameter.empty:
            raise ValueError(f"algorithm.{key} is missing: {name} needs it")
    if isinstance(settings.get("server_optimizer"), dict):
        chosen = local.make_optimizer(**settings["server_optimizer"])
        settings["server_optimizer"] = chosen(0)
    return factory(loss_fn, optimizer, **settings)


def build_optimizer(config):
    """The clients' optimizer with its schedule over the rounds of the main stage.

    `final_learning_rate` decays exponentially from `optimizer.learning_rate` at round
    `lr_delay` to that value `lr_horizon` rounds later (default: `num_rounds`).
    """
    settings = dict(config.optimizer)
    if config.final_learning_rate is not None:
        settings["schedule"] = optax.schedules.exponential_decay(
            settings["learning_rate"],
            config.lr_horizon or config.num_rounds,
            config.final_learning_rate / settings["learning_rate"],
            transition_begin=config.lr_delay,
        )
    return local.make_optimizer(**settings)


def build_data(config):
    """The federated data of a configuration."""
    dataset = datasets.load(config.dataset, data_dir=config.data_dir)
    seed = config.seed if config.partition_seed is None else config.partition_seed
    settings = {key: _optional(v) for key, v in config.partition.items()}
    name = settings.pop("name")
    return datasets.federate(
        dataset,
        name,
        config.num_clients,
        seed=seed,
        val_fraction=config.val_fraction,
        **settings,
    )


def build_model(config, data):
    """The model of a configuration, reading raw samples of `data`."""
    settings = dict(config.model)
    model = models.build(
        settings.pop("name"), data.num_classes, data.x.shape[1:], **settings
    )
    preprocess = datasets.make_preprocess(
        data.mean if config.normalize else None,
        data.std if config.normalize else None,
        scale=config.input_scale,
        augment=tuple(config.augment),
    )
    return model.reading(preprocess)


def build_budgets(config):
    """[N] float32: every client's share of the model, tiers shuffled by seed."""
    if not config.budgets:
        return None
    budgets, shares = np.array(config.budgets, float).T
    if abs(shares.sum() - 1) > 1e-6 or not np.all((budgets > 0) & (budgets <= 1)):
        raise ValueError(
            f"budgets={config.budgets}, expected pairs (budget in (0, 1], share of the "
            "clients) whose shares sum to 1"
        )
    ends = np.round(np.cumsum(shares) * config.num_clients).astype(int)
    tiers = np.repeat(budgets, np.diff(ends, prepend=0)).astype(np.float32)
    return np.random.default_rng(config.seed).permutation(tiers)


def build_stages(config, loss_fn, budgets=None) -> list[Stage]:
    """The stages of a configuration: `first_stage` where there is one, the main one."""
    optimizer = build_optimizer(config)
    main = {
        "num_rounds": config.num_rounds,
        "cohort_size": config.cohort_size,
        "epochs": config.epochs,
        "batch_size": config.batch_size,
    }
    stages = []
    if config.first_stage:
        settings = config.first_stage.to_dict()
        chosen = main | {k: settings.pop(k) for k in main if k in settings}
        stages.append(Stage(build_algorithm(settings, loss_fn, optimizer), **chosen))
    sampler = None
    if budgets is not None:
        sampler = simulate.stratified_sampler(budgets, config.cohort_size)
    algorithm = build_algorithm(config.algorithm.to_dict(), loss_fn, optimizer)
    return [*stages, Stage(algorithm, **main, sampler=sampler)]


def run(config, workdir, *, progress: bool = True) -> dict:
    """Runs a configuration and writes its files to `workdir`.

    Args:
      config: as `default_config` makes it.
      workdir: a directory that holds no run yet; created if absent.
      progress: whether to show a progress bar, or lines where there is no terminal.

    Returns:
      The summary, as `summary.json` has it.

    Raises:
      ValueError: in one line, before any compilation, on what can not be run.
    """
    workdir = Path(workdir)
    if (workdir / "metrics.jsonl").exists():
        raise ValueError(
            f"workdir={str(workdir)!r} holds a run already, expected an empty one"
        )
    data = build_data(config)
    model = build_model(config, data)
    budgets = build_budgets(config)
    stages = build_stages(config, local.cross_entropy(model), budgets)
    loop.check(stages, data, config.eval_every, config.chunk)
    workdir.mkdir(parents=True, exist_ok=True)
    (workdir / "config.json").write_text(config.to_json_best_effort(indent=2))
    np.save(workdir / "partition.npy", datasets.partition_counts(data))

    begin = time.perf_counter()
    total = sum(stage.num_rounds for stage in stages)
    with writer(workdir) as write, Progress(total, show=progress) as bar:

        def callback(records):
            write(records, time.perf_counter() - begin)
            bar.update(records)

        result = loop.run(
            jax.random.key(config.seed),
            stages,
            model,
            data,
            callback=callback,
            eval_every=config.eval_every,
            chunk=config.chunk,
            budgets=budgets,
        )
    seconds = time.perf_counter() - begin
    summary = summarize(config, stages, result.metrics, seconds)
    (workdir / "summary.json").write_text(json.dumps(summary, indent=2))
    report.plot_run(workdir)
    return summary


@contextlib.contextmanager
def writer(workdir: Path):
    """Gives `write(records, seconds)`: appends to `metrics.jsonl`, `timing.jsonl`."""
    with (
        open(workdir / "metrics.jsonl", "w") as metrics,
        open(workdir / "timing.jsonl", "w") as timing,
    ):
        last = 0.0

        def write(records: list[dict], seconds: float) -> None:
            nonlocal last
            rounds = sum(record["phase"] == "train" for record in records)
            line = {
                "stage": records[-1]["stage"],
                "round": records[-1]["round"],
                "seconds": seconds,
                "rounds_per_second": rounds / (seconds - last),
            }
            last = seconds
            metrics.writelines(json.dumps(record) + "\n" for record in records)
            timing.write(json.dumps(line) + "\n")
            metrics.flush()
            timing.flush()

        yield write


def summarize(config, stages, metrics: list[dict], seconds: float) -> dict:
    """What `summary.json` holds; totals per stage, accuracy per deployed model."""
    train = [r for r in metrics if r["phase"] == "train"]
    last_stage = len(stages) - 1
    evals = [r for r in metrics if r["phase"] == "eval" and r["stage"] == last_stage]
    final = evals[-1]
    accuracy = {}
    for name, result in final["models"].items():
        best = max(evals, key=lambda r, name=name: r["models"][name]["accuracy"])
        accuracy[name] = {
            "final": result["accuracy"],
            "best": best["models"][name]["accuracy"],
            "best_round": best["round"],
            "density": result["density"],
        }
    names = [config.first_stage["name"]] if len(stages) > 1 else []
    return {
        "method": config.algorithm.name,
        "model": config.model.name,
        "dataset": config.dataset,
        "partition": config.partition.name,
        "seed": config.seed,
        "rounds": len(train),
        "stages": [
            {"name": name} | _totals([r for r in train if r["stage"] == index])
            for index, name in enumerate([*names, config.algorithm.name])
        ],
        "accuracy": accuracy,
        "client_accuracy": final["client_accuracy"],
        "density": train[-1]["density"],
        "seconds": seconds,
        "rounds_per_second": len(train) / seconds,
        "versions": {name: importlib.metadata.version(name) for name in VERSIONS}
        | {"python": platform.python_version()},
        "device": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "matmul_precision": jax.config.jax_default_matmul_precision or "default",
        "commit": _commit(),
    }


def _totals(records: list[dict]) -> dict:
    def total(key):
        return sum(r[key] for r in records)

    return {
        "rounds": len(records),
        "bits_up": total("bits_up"),
        "bits_down": total("bits_down"),
        "bits_values": total("bits_up_values") + total("bits_down_values"),
        "bits_positions": total("bits_up_positions") + total("bits_down_positions"),
        "flops": total("flops"),
        "flops_dense": total("flops_dense"),
        "flops_executed": total("flops_executed"),
    }


def _commit() -> str:
    """The commit of the checkout that runs, '' outside one."""
    where = Path(__file__).parent
    try:
        command = ["git", "-C", str(where), "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""
