"""The command line's verbs; a refusal is one line on standard error, exit code 2."""

import datetime
import inspect
import os
import re
import shlex
import sys
from pathlib import Path

from absl import flags as absl_flags
from ml_collections.config_flags import config_flags

from sparsefl_jax import algorithms, data, models, report
from sparsefl_jax.core import formats
from sparsefl_jax.core.validate import one_line
from sparsefl_jax.runs import dry_run as plans
from sparsefl_jax.runs import experiment, fit_rounds, folder, help_text
from sparsefl_jax.runs.config import defaults, fields, methods
from sparsefl_jax.runs.programs import Programs
from sparsefl_jax.system import hardware, interrupt, membership, processes, shipped

EVERYTHING = "all"  # what `--fields` lists without a section
# Flags that are gone, with the commands that replace them.
MOVED = {"target": "python -m benchmarks.targets TARGET --config=..."} | defaults.GONE


def check_flags(verbs: dict, others: dict) -> None:
    """Refuses flags that would be ignored beside another one.

    Args:
      verbs: values by name, of `list`, `fields`, `prepare`, `dry_run` and `resume`, of
        which one at most can be given.
      others: values by name, which the first three do not read; `fields` reads
        `config`.

    Raises:
      ValueError: names both.

    Example:
      >>> check_flags({"list": True}, {"workdir": "a"})
      Traceback (most recent call last):
        ...
      ValueError: --workdir is not read beside --list, expected one without the other
    """
    given = [name for name, value in verbs.items() if value]
    unread = given[1:]
    if {"list", "fields", "prepare"} & set(given):
        also = {"config"} if given[0] == "fields" else set()
        unread += [name for name in others.keys() - also if others[name] is not None]
    if unread:
        raise ValueError(
            f"--{unread[0]} is not read beside --{given[0]}, expected one without the "
            "other"
        )


def run(config, workdir: str | None, resume: bool = False, **may: bool) -> None:
    """Runs a configuration, or goes on with a run, and prints its table.

    `may` holds what `experiment.run` accepts in a run that goes on.
    """
    if resume and workdir is None:
        raise ValueError("--workdir is missing, expected the directory of a run")
    if config is None and not resume:
        raise ValueError(
            "--config is missing, expected configs/flash_cifar10.py:mini, say"
        )
    if config is None:
        config = folder.read_config(workdir)
    config = methods.settle(config)
    hardware.keep_compilations()
    if workdir is None:
        fields.check(config)
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        dataset = Path(config.dataset).stem
        workdir = f"runs/{config.algorithm.name}_{dataset}_{stamp}".replace(":", ".")
    try:
        summary = experiment.run(config, workdir, resume=resume, **may)
    except interrupt.StoppedError as error:
        if processes.leads():
            print(
                f"{error}; to go on:\n"
                f"{help_text.program()} --resume --workdir={shlex.quote(str(workdir))}",
                file=sys.stderr,
            )
        sys.exit(error.code)
    if processes.leads():
        formats.say(report.summary_table(summary))


def dry_run(config, rounds: int = 0) -> None:
    """Prints what is known of a run whose stages are compiled, and what rounds cost.

    Args:
      config: of the run.
      rounds: of each stage to run, after the pilot of a budget; 0 trains nothing.
    """
    if config is None:
        raise ValueError("--config is missing, expected a file in configs/")
    hardware.keep_compilations()
    show, lines = processes.leads(), []
    config = methods.settle(config)
    if rounds:
        config, found = fit_rounds.fitted(config, experiment.build, progress=show)
        lines += [found] if found else []
    parts = experiment.build(config)
    with Programs(*parts) as programs:
        memories = [programs.of(stage).memory for stage in range(len(parts.traced))]
    lines.append(plans.text(parts, memories))
    if config.seeds > 1:
        lines.append(f"All this {config.seeds} times, once for each seed.")
    if rounds:
        told = plans.measured(parts, rounds, config.seed, progress=show)
        lines += ["", told]
    elif budgets := fit_rounds.wanted(config):
        asked = " and ".join(f"fit.{name}={v:g}" for name, v in budgets.items())
        lines.append(f"A pilot will set the rounds, by {asked}; --dry_run=2 runs it.")
    if show:
        formats.say("\n".join(lines))


def list_fields(section: str, config) -> None:
    """Prints the fields of a section, or of all for `EVERYTHING`."""
    config = config if config is None else methods.settle(config)
    formats.say(fields.listing("" if section == EVERYTHING else section, config))


def catalogue() -> str:
    """Lists methods, models, data sets, partitioners, configurations and studies."""

    def first_line(thing) -> str:
        text = thing if isinstance(thing, str) else inspect.getdoc(thing) or ""
        return text.strip().splitlines()[0]

    groups = {
        "methods": algorithms.ALGORITHMS,
        "models": models.MODELS,
        "data sets": data.DATASETS,
        "partitioners": data.PARTITIONERS,
        **{
            kind: {
                name: (shipped.folder(kind) / name).read_text().lstrip('"')
                for name in shipped.names(kind)
            }
            for kind in ("configs", "studies")
        },
    }
    lines = []
    for title, table in groups.items():
        lines += [f"{title}:"]
        lines += [f"  {name:22} {first_line(entry)}" for name, entry in table.items()]
    return "\n".join(lines)


def _unknown_field(error: Exception) -> str:
    """Turns ml_collections' message about a field that a file sets into a sentence."""
    text = one_line(error).replace(r"\n", " ")  # at times a repr of a repr
    found = re.match(r"\W*(\w+)\W*(?:Did you mean|$)", text)
    if not found:
        return text
    return defaults.unknown_field(found[1], defaults.default_config())


def define_config(values):
    """Defines the flag `--config`: a file, changed by the other flags.

    The file may be the `config.json` of a run. Where `--config.SECTION.name` names
    another entry than the file does, the section gets this one's arguments before
    ml_collections looks for what else is overridden.

    The text None stands for no value, in fields of every type.

    Args:
      values: absl's `FlagValues`.

    Returns:
      What holds the configuration once the flags are parsed.
    """
    for kind in (int, float, str):
        config_flags.register_flag_parser_for_type(kind, _OrNone(kind))

    class Parser(config_flags.ConfigFileFlagParser):
        def parse(self, path):
            path = shipped.find("config", "configs", path)
            of_run = path.endswith(".json")
            if of_run:
                config = folder.read_config(Path(path).parent).lock()
            else:
                config = super().parse(path)
            argv = values.read_flags_from_files(sys.argv, force_gnu=False)
            if of_run and not any(arg.lstrip("-") == "resume" for arg in argv):
                fit = config.fit  # a new run fits its budget anew
                with fit.unlocked(), fit.ignore_type():
                    fit.by = fit.measured = None
            methods.follow(config, _overrides(argv))
            return config

    meaning = "A file in configs/ with a variant of it, or the config.json of a run."
    holder = config_flags.DEFINE_config_file(
        "config", None, meaning, flag_values=values
    )
    values["config"].parser = Parser("config")
    return holder


class _OrNone(absl_flags.ArgumentParser):
    """Reads a value of a type; the text None is none."""

    def __init__(self, kind: type):
        self.kind = kind

    def parse(self, argument):
        return None if argument == "None" else self.kind(argument)


def completed(argv: list[str]) -> list[str]:
    """Completes a command line, so that absl and ml_collections understand it.

    `--fields` alone lists all fields, and `--dry_run` alone runs no rounds. Where a
    resumed run is given overrides, they are of the `config.json` in its folder.

    Example:
      >>> completed(["x.py", "--fields"])
      ['x.py', '--fields=all']
      >>> completed(["x.py", "--resume", "--workdir=a", "--config.num_rounds=9"])[:3]
      ['x.py', '--config=a/config.json', '--resume']
    """
    alone = ("--fields", "--fields=", "-fields")
    argv = [f"--fields={EVERYTHING}" if arg in alone else arg for arg in argv]
    argv = ["--dry_run=0" if arg in ("--dry_run", "-dry_run") else arg for arg in argv]
    text = [arg.removeprefix("-").removeprefix("-") for arg in argv]
    overrides = any(arg.startswith("config.") for arg in text)
    given = any(arg.partition("=")[0] == "config" for arg in text)
    if not overrides or given:
        return argv
    if "resume" not in text:
        raise ValueError("--config.FIELD=VALUE is set, expected --config=FILE with it")
    for at, arg in enumerate(text):
        name, there, value = arg.partition("=")
        if name == "workdir":
            value = value if there else "".join(argv[at + 1 : at + 2])
            return [argv[0], f"--config={Path(value) / 'config.json'}", *argv[1:]]
    return argv


def _overrides(argv: list[str]) -> dict[str, str]:
    """Returns the values of `--config.FIELD=VALUE` flags by field."""
    given = {}
    for arg, following in zip(argv, [*argv[1:], ""], strict=True):
        if found := re.fullmatch(r"--?config\.([\w.]+)(?:=(.*))?", arg, re.DOTALL):
            given[found[1]] = following if found[2] is None else found[2]
    return given


def guarded(app, flags, main) -> None:
    """Runs `main` under absl; prints the user's mistakes as one line.

    Modules are found in the current folder too, wherever `launch.py` is.
    `SPARSEFL_DEBUG=1` lets every exception through with its traceback.

    Args:
      app, flags: absl's modules.
      main: takes the arguments that are not flags.
    """
    sys.path.append(os.getcwd())  # last, so that nothing there replaces a package
    if {"--help", "-help", "-h", "-?"} & set(sys.argv[1:]):
        return formats.say(help_text.text(flags.FLAGS, main.__module__))
    if os.environ.get("SPARSEFL_DEBUG"):
        return app.run(main, argv=completed(sys.argv))

    def parse(argv):
        try:
            return flags.FLAGS(completed(argv))
        except (KeyError, AttributeError) as error:  # a field that is not there
            refuse(_unknown_field(error))
        except absl_flags.UnrecognizedFlagError as error:
            if moved := MOVED.get(error.flagname):
                refuse(f"--{error.flagname} has moved: {moved}")
            name = error.flagname
            field = name if "." in name else defaults.nearest(name)
            refuse(f"{error}; did you mean --config.{field}?" if field else error)
        except Exception as error:  # absl and ml_collections raise many kinds here
            refuse(error)

    def run(argv):
        try:
            main(argv)
        except (ValueError, OSError) as error:
            refuse(error)
        except (FloatingPointError, MemoryError) as error:
            membership.leave(f"error: {one_line(error)}")
        except RuntimeError as error:  # XLA's own errors are a kind of these
            if membership.lost(error):
                membership.leave(f"error: {membership.explained(error)}")
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            membership.leave(f"error: {one_line(error)}")
        except KeyboardInterrupt:
            membership.leave("interrupted; the metrics so far are kept")

    def refuse(error):
        membership.leave(f"error: {one_line(error)}", 2)

    return app.run(run, flags_parser=parse)
