"""Runs a method of sparse federated learning as a configuration describes it.

  sparsefl --list
  sparsefl --config=configs/flash_cifar10.py:mini --workdir=runs/a
  sparsefl --resume --workdir=runs/a

  --config=FILE[:VARIANT]        A file in configs/, or the config.json of a run.
  --config.FIELD=VALUE           Change a field, such as num_rounds or algorithm.name.
  --fields[=SECTION]             List all fields, or those of a section or an entry.
  --helpfull                     Also list the flags of absl and JAX.

`python -m sparsefl_jax` and `python launch.py` are the same command.
"""

import datetime
import inspect
import shlex
import sys
from collections.abc import Collection
from pathlib import Path

from absl import app, flags, logging

from sparsefl_jax import algorithms, data, models, report
from sparsefl_jax.config import command_line
from sparsefl_jax.config.defaults import freeze
from sparsefl_jax.core import formats
from sparsefl_jax.core.check import UserError
from sparsefl_jax.runs import describe, experiment, fit_rounds, folder
from sparsefl_jax.runs.programs import Programs
from sparsefl_jax.studies import command
from sparsefl_jax.system import hardware, interrupt, membership, processes, shipped

command_line.define_config(flags.FLAGS)
FIELDS = flags.DEFINE_string(
    "fields",
    None,
    "List all fields with type, default and meaning, or only those of a SECTION.",
)
WORKDIR = flags.DEFINE_string(
    "workdir", None, "Folder for the run's files; by default a new one in runs/."
)
LIST = flags.DEFINE_bool(
    "list", False, "List the methods, networks, data sets, partitions and files."
)
DRY_RUN = flags.DEFINE_bool(
    "dry_run", False, "Print the plan of a run or a study without training."
)
RESUME = flags.DEFINE_bool("resume", False, "Continue the run in --workdir.")
STUDY = flags.DEFINE_string(
    "study", None, "A file in studies/: many runs, compared on a page in --workdir."
)
SWEEP = flags.DEFINE_string(
    "sweep", None, 'Vary --config: "seed=0,1; density=log(.1,1)x8" or uniform(0,1)x8.'
)
JOBS = flags.DEFINE_integer("jobs", 1, "Number of runs of a study at the same time.")
SLURM = flags.DEFINE_string(
    "slurm",
    None,
    "Submit each point of a study as a job, with submitit's parameters, as in "
    "timeout_min=60,slurm_partition=gpu.",
)
UNLIKE = flags.DEFINE_bool(
    "unlike", False, "Compare runs even if their data, partitions or metrics differ."
)
DISTRIBUTED = flags.DEFINE_bool(
    "distributed",
    False,
    "Run as one of several processes; the launcher (SLURM, Open MPI, a TPU pod) or "
    "the next three flags say which.",
)
COORDINATOR = flags.DEFINE_string("coordinator", None, "host:port of process 0.")
PROCESSES = flags.DEFINE_integer("processes", None, "Number of processes.")
PROCESS_ID = flags.DEFINE_integer("process_id", None, "Index of this process, from 0.")
WAIT_MINUTES = flags.DEFINE_float(
    "wait_minutes", None, "Minutes to wait for the other processes, by default 5."
)


_PROCESSES = "distributed coordinator processes process_id wait_minutes"
_OF_A_STUDY = "workdir dry_run jobs slurm unlike"
READS = {  # the flags that each command uses; the first one given decides
    "list": "",
    "fields": "config",
    "study": _OF_A_STUDY,
    "sweep": f"config {_OF_A_STUDY}",
    "dry_run": f"config workdir {_PROCESSES}",
    "resume": f"config workdir {_PROCESSES}",
    "config": f"workdir {_PROCESSES}",
}


def main() -> None:
    """Runs the command line; a user's mistake ends it with one line and code 2."""
    if {"--help", "-h"} & set(sys.argv):  # instead of absl's own
        return formats.say(f"{__doc__}{flags.FLAGS.module_help(__name__)}")
    hardware.use_cpu_cores()  # before JAX starts
    try:
        with membership.guard():
            app.run(do, flags_parser=command_line.parse_flags)
    finally:
        interrupt.end_at_once()


def do(argv) -> None:
    """Runs the command that the flags select."""
    logging.set_verbosity(logging.WARNING)
    if len(argv) > 1:
        raise UserError(f"{argv[1]!r} is not understood, expected --name=value")
    study = STUDY.value or SWEEP.value
    defined = *flags.FLAGS.get_key_flags_for_module(__name__), flags.FLAGS["config"]
    check_flags([f.name for f in defined if f.present and f.value is not False])
    which = COORDINATOR.value, PROCESSES.value, PROCESS_ID.value
    wait = WAIT_MINUTES.value
    if DISTRIBUTED.value or which != (None, None, None):
        membership.start(*which, membership.WAIT_MINUTES if wait is None else wait)
    elif wait is not None:
        raise UserError(f"--wait_minutes={wait:g} is read in several processes alone")
    if LIST.value:
        return print(catalogue())
    if resumed := WORKDIR.value if RESUME.value else None:
        folder.read_config(resumed)  # which there is
    config = command_line.configuration(flags.FLAGS, resumed)
    if FIELDS.value is not None:
        return formats.say(command_line.list_fields(FIELDS.value, config))
    hardware.keep_compilations()
    if study:
        return command.run(
            STUDY.value,
            SWEEP.value,
            config,
            WORKDIR.value,
            jobs=JOBS.value,
            unlike=UNLIKE.value,
            slurm=SLURM.value,
            dry_run=DRY_RUN.value,
        )
    if RESUME.value and resumed is None:
        raise UserError("--workdir is missing, expected the directory of a run")
    if config is None:
        raise UserError(
            "--config is missing, expected configs/flash_cifar10.py:mini, say"
        )
    if DRY_RUN.value:
        return print_plan(config)
    return start_run(config, WORKDIR.value, RESUME.value)


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


def start_run(config, workdir: str | None, resume: bool = False) -> None:
    """Starts or resumes a run as `experiment.run` does, and prints its table."""
    if workdir is None:
        freeze(config)
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        dataset = Path(config.dataset).stem
        workdir = f"runs/{config.algorithm.name}_{dataset}_{stamp}".replace(":", ".")
    try:
        summary = experiment.run(config, workdir, resume=resume)
    except interrupt.StoppedError as error:
        if processes.leads():
            again = f"sparsefl --resume --workdir={shlex.quote(str(workdir))}"
            print(f"{error}; to continue:\n{again}", file=sys.stderr)
        sys.exit(error.code)
    if processes.leads() and isinstance(summary, list):
        comparison = report.compare(report.read_groups([workdir]))
        formats.say(report.comparison_table(comparison))
    elif processes.leads():
        formats.say(report.summary_table(summary))


def print_plan(config) -> None:
    """Compiles the stages of a run and prints its plan."""
    plan = experiment.build(config)
    with Programs(plan) as programs:
        memories = [programs.of(stage).memory for stage in range(len(plan.stages))]
    lines = [describe.text(plan, memories)]
    if budgets := fit_rounds.budgets_of(config):
        asked = " and ".join(f"fit.{name}={v:g}" for name, v in budgets.items())
        lines.append(f"A pilot will set the rounds, by {asked}.")
    if processes.leads():
        formats.say("\n".join(lines))


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
