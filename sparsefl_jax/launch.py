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

import sys

from absl import app, flags, logging

from sparsefl_jax.core import formats
from sparsefl_jax.core.check import UserError
from sparsefl_jax.runs import cli
from sparsefl_jax.studies import command
from sparsefl_jax.system import hardware, interrupt, membership

cli.define_config(flags.FLAGS)
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
PREPARE = flags.DEFINE_string("prepare", None, "Download this data set of TFDS.")
STUDY = flags.DEFINE_string(
    "study", None, "A file in studies/: many runs, compared on a page in --workdir."
)
SWEEP = flags.DEFINE_string(
    "sweep", None, 'A study of --config: "algorithm.name=fedavg,spdst; density=.05,.1".'
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


def main() -> None:
    """Runs the command line; a user's mistake ends it with one line and code 2."""
    if {"--help", "-h"} & set(sys.argv):  # instead of absl's own
        return formats.say(f"{__doc__}{flags.FLAGS.module_help(__name__)}")
    hardware.use_cpu_cores()  # before JAX starts
    try:
        with cli.guard():
            app.run(do, flags_parser=cli.parse_flags)
    finally:
        interrupt.end_at_once()


def do(argv) -> None:
    """Runs the command that the flags select."""
    logging.set_verbosity(logging.WARNING)
    if len(argv) > 1:
        raise UserError(f"{argv[1]!r} is not understood, expected --name=value")
    study = STUDY.value or SWEEP.value
    defined = *flags.FLAGS.get_key_flags_for_module(__name__), flags.FLAGS["config"]
    cli.check_flags([f.name for f in defined if f.present and f.value is not False])
    which = COORDINATOR.value, PROCESSES.value, PROCESS_ID.value
    wait = WAIT_MINUTES.value
    if DISTRIBUTED.value or which != (None, None, None):
        membership.start(*which, membership.WAIT_MINUTES if wait is None else wait)
    elif wait is not None:
        raise UserError(f"--wait_minutes={wait:g} is read in several processes alone")
    if LIST.value:
        return print(cli.catalogue())
    resumed = WORKDIR.value if RESUME.value else None
    config = cli.configuration(flags.FLAGS, resumed)
    if FIELDS.value is not None:
        return formats.say(cli.list_fields(FIELDS.value, config))
    if PREPARE.value:
        from sparsefl_jax.data.prepared_tfds import prepare

        return print(prepare(PREPARE.value))
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
    if DRY_RUN.value:
        return cli.dry_run(config)
    return cli.run(config, WORKDIR.value, RESUME.value)
