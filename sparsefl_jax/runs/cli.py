"""Commands of the command line; user errors print one line and exit with code 2."""

import contextlib
import datetime
import inspect
import os
import re
import shlex
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

from absl import flags as absl_flags

from sparsefl_jax import algorithms, data, models, report
from sparsefl_jax.config import defaults, fields
from sparsefl_jax.config.defaults import freeze
from sparsefl_jax.core import formats, users_code
from sparsefl_jax.core.check import UserError, blame, check, one_line, words
from sparsefl_jax.runs import describe as plans
from sparsefl_jax.runs import experiment, fit_rounds, folder
from sparsefl_jax.runs.programs import Programs
from sparsefl_jax.system import interrupt, membership, processes, shipped

_PROCESSES = "distributed coordinator processes process_id wait_minutes"
_OF_A_STUDY = "workdir dry_run jobs slurm unlike"
READS = {  # the flags that each command uses; the first one given decides
    "list": "",
    "fields": "config",
    "prepare": "",
    "study": _OF_A_STUDY,
    "sweep": f"config {_OF_A_STUDY}",
    "dry_run": f"config workdir {_PROCESSES}",
    "resume": f"config workdir {_PROCESSES}",
    "config": f"workdir {_PROCESSES}",
}


def check_flags(given: Collection[str]) -> None:
    """Checks that no flag would be ignored because of another one.

    `--workdir` may stand beside the `--dry_run` of a run, which does not read it.

    Args:
      given: the names of the flags that are set.

    Raises:
      ValueError: a flag would be ignored; the message names both.

    Example:
      >>> check_flags(["list", "workdir"])
      Traceback (most recent call last):
        ...
      sparsefl_jax.UserError: --workdir is not read beside --list, expected one without
      the other
    """
    verb = next((verb for verb in READS if verb in given), None)
    for name in given:
        if verb and name not in (verb, *READS[verb].split()):
            raise UserError(
                f"--{name} is not read beside --{verb}, expected one without the other"
            )


def run(config, workdir: str | None, resume: bool = False) -> None:
    """Starts or resumes a run as `experiment.run` does, and prints its table."""
    if resume and workdir is None:
        raise UserError("--workdir is missing, expected the directory of a run")
    if config is None:
        raise UserError(
            "--config is missing, expected configs/flash_cifar10.py:mini, say"
        )
    if workdir is None:
        freeze(config)
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        dataset = Path(config.dataset).stem
        workdir = f"runs/{config.algorithm.name}_{dataset}_{stamp}".replace(":", ".")
    try:
        summary = experiment.run(config, workdir, resume=resume)
    except interrupt.StoppedError as error:
        if processes.leads():
            command = f"sparsefl --resume --workdir={shlex.quote(str(workdir))}"
            print(f"{error}; to continue:\n{command}", file=sys.stderr)
        sys.exit(error.code)
    if processes.leads() and isinstance(summary, list):
        comparison = report.compare(report.read_groups([workdir]))
        formats.say(report.comparison_table(comparison))
    elif processes.leads():
        formats.say(report.summary_table(summary))


def dry_run(config) -> None:
    """Compiles the stages of a run and prints its plan."""
    if config is None:
        raise UserError("--config is missing, expected a file in configs/")
    plan = experiment.build(config)
    with Programs(plan) as programs:
        memories = [programs.of(stage).memory for stage in range(len(plan.stages))]
    lines = [plans.text(plan, memories)]
    if budgets := fit_rounds.budgets_of(config):
        asked = " and ".join(f"fit.{name}={v:g}" for name, v in budgets.items())
        lines.append(f"A pilot will set the rounds, by {asked}.")
    if processes.leads():
        formats.say("\n".join(lines))


def list_fields(section: str = "all", config=None) -> str:
    """Returns a list of fields with their types, defaults and meanings.

    Args:
      section: a section; a method, network or partition, whose documentation and
        arguments are listed; or 'all'.
      config: the configuration whose sections are listed, by default
        `default_config()`. Values that differ from the default are printed too.

    Raises:
      ValueError: there is no such section.

    Example:
      >>> list_fields("until").splitlines()[2][:50]
      'until.accuracy  a finite number, in (0, 1] or None'
    """
    config = defaults.default_config() if config is None else config
    sections = [name for name in config if hasattr(config[name], "to_dict")]
    if section in sections:
        return _explain(section, config[section])
    for field, table in fields.TABLES.items():
        if section in table:
            return _explain(field, {"name": section})
    names = (name for table in fields.TABLES.values() for name in table)
    check("--fields", section, dict.fromkeys(["all", *sections, *names]))
    head = (
        "--config.NAME=VALUE sets a field, --config.SECTION.NAME=VALUE one of a section"
    )
    tables = (_table(name, config[name]) for name in sections)
    return "\n\n".join([head, _table("", config), *tables])


def _explain(field: str, section) -> str:
    """Lists the fields of a section, below the documentation of what it names."""
    name, doc = section.get("name"), ""
    if field in fields.TABLES and name is not None:
        text = inspect.getdoc(fields.factory(field, name))
        doc = f"{name}: {text or ''}\n\n"
    return doc + _table(field, section)


def _table(field: str, section) -> str:
    """Aligns names, types, defaults and lines."""
    found = fields.arguments(field, section.get("name"))
    head = f"{field}." if field else ""
    rows = []
    for key, parameter in found.items():
        required = parameter.default is inspect.Parameter.empty
        line, now = fields.MEANINGS.get(head + key, ""), section.get(key)
        line += "" if now in (None, parameter.default) else f" (here {now!r})"
        default = "required" if required else repr(parameter.default)
        rows.append((head + key, words(parameter.annotation), default, line))
    return "\n".join(line.rstrip() for line in formats.align(rows, left=4))


def catalogue() -> str:
    """Lists methods, models, data sets, partitioners, configurations and studies."""

    def first_line(thing) -> str:
        text = thing if isinstance(thing, str) else inspect.getdoc(thing) or ""
        return text.strip().splitlines()[0]

    groups: dict[str, dict] = {
        "methods": algorithms.ALGORITHMS,
        "models": models.MODELS,
        "data sets": data.DATASETS,
        "partitioners": data.PARTITIONERS,
    }
    for kind in ("configs", "studies"):
        files = {name: shipped.folder(kind) / name for name in shipped.names(kind)}
        groups[kind] = {name: f.read_text().lstrip('"') for name, f in files.items()}
    lines = []
    for title, table in groups.items():
        lines += [f"{title}:"]
        lines += [f"  {name:22} {first_line(entry)}" for name, entry in table.items()]
    return "\n".join(lines)


def define_config(values) -> None:
    """Defines the flag `--config`, a file, and `--override`, which changes it.

    `complete_flags` writes `--config.FIELD=VALUE` as `--override=FIELD=VALUE`.

    Args:
      values: absl's `FlagValues`.
    """
    meaning = "A file in configs/ with a variant of it, or the config.json of a run."
    absl_flags.DEFINE_string("config", None, meaning, flag_values=values)
    meaning = "FIELD=VALUE, as --config.FIELD=VALUE."
    absl_flags.DEFINE_multi_string("override", [], meaning, flag_values=values)


def configuration(values, resumed: str | None = None):
    """Returns the configuration of a command line; None if it names none.

    Args:
      values: absl's `FlagValues`, after parsing.
      resumed: the folder of the run that goes on, whose configuration may be changed.

    Raises:
      ValueError: the file cannot be read, or a field does not exist.
    """
    path = values["config"].value
    for pair in values["override"].value:
        if "=" not in pair:
            raise UserError(f"--config.{pair}, expected --config.{pair}=VALUE")
    given = dict(pair.split("=", 1) for pair in values["override"].value)
    if path is None and resumed is not None:
        folder.read_config(resumed)  # which there is
        path = str(Path(resumed) / "config.json")
    if path is None:
        if given:
            raise UserError(
                "--config.FIELD=VALUE is set, expected --config=FILE with it"
            )
        return None
    with blame(f"--config={path}"):
        config = defaults.load_config(path)
    if path.endswith(".json") and resumed is None:
        config.fit.by = None  # a new run fits its budget anew
    left = defaults.override(config, given)
    if left and processes.leads():
        print(f"the file had set {', '.join(left)}, left out here", file=sys.stderr)
    return config


def complete_flags(argv: list[str]) -> list[str]:
    """Completes a command line for absl.

    `--fields` without a value lists all fields.

    Example:
      >>> complete_flags(["x.py", "--fields", "--config.seed=3"])
      ['x.py', '--fields=all', '--override=seed=3']
    """
    words = ["--fields=all" if word == "--fields" else word for word in argv]
    return [re.sub(r"^--?config\.", "--override=", word) for word in words]


def parse_flags(argv: list[str], values=absl_flags.FLAGS) -> list[str]:
    """Parses a command line.

    Args:
      argv: the command line.
      values: absl's `FlagValues`, with `config` among the flags.

    Returns:
      The arguments that are not flags.

    Raises:
      ValueError: absl or ml_collections cannot parse the command line.
    """
    try:
        argv = values.read_flags_from_files(argv, force_gnu=False)
        rest = values(complete_flags(argv))
    except absl_flags.Error as error:
        raise UserError(one_line(error)) from error
    return rest


@contextlib.contextmanager
def guard() -> Iterator[None]:
    """Prints user errors as one line, and ends the process with code 2.

    So are files that cannot be read or written, a loss that is not finite, and a lack
    of memory. All else keeps its traceback, as does what a user's own code raises.
    Modules in the current folder can be imported too, wherever `launch.py` is. With
    `SPARSEFL_DEBUG=1` every exception is raised with its traceback.
    """
    sys.path.append(os.getcwd())  # last, so that nothing there replaces a package
    if os.environ.get("SPARSEFL_DEBUG"):
        yield
        return
    try:
        yield
    except KeyboardInterrupt:
        membership.leave("interrupted; what was saved is kept", 130)
    except Exception as error:
        code = _code(error)
        if code is None:
            raise
        membership.leave(f"error: {one_line(error)}", code)


def _code(error: Exception) -> int | None:
    """Returns the exit code of an error that is told in one line, None for others."""
    if isinstance(error, UserError):
        return 2
    if users_code.owns(error):
        return None
    if isinstance(error, OSError):
        return 2
    if isinstance(error, RuntimeError):  # XLA's errors are of this class
        lost = "RESOURCE_EXHAUSTED" in str(error) or membership.lost(error)
        return 1 if lost else None
    return 1 if isinstance(error, FloatingPointError | MemoryError) else None
