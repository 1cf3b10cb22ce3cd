"""The command line's verbs; a refusal is one line on standard error, exit code 2."""

import datetime
import difflib
import inspect
import os
import re
import shlex
import sys
from pathlib import Path

CONFIGS = Path(__file__).parent.parent / "configs"


def run(config, workdir: str | None, resume: bool = False) -> None:
    """Runs a configuration, or goes on with a run, and prints its table."""
    from sparsefl_jax import devices, experiment, fields, interrupt, processes, report
    from sparsefl_jax.workdir import read_config

    if resume and workdir is None:
        raise ValueError("--workdir is missing, expected the directory of a run")
    if config is None and not resume:
        raise ValueError(
            "--config is missing, expected configs/flash_cifar10.py:mini, say"
        )
    config = read_config(workdir) if config is None else config
    fields.check(config)
    devices.keep_compilations()
    if workdir is None:
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        data = Path(config.dataset).stem
        workdir = f"runs/{config.algorithm.name}_{data}_{stamp}".replace(":", ".")
    try:
        summary = experiment.run(config, workdir, resume=resume)
    except interrupt.StoppedError as error:
        if processes.leads():
            print(
                f"{error}; to go on:\n"
                f"python launch.py --resume --workdir={shlex.quote(str(workdir))}",
                file=sys.stderr,
            )
        sys.exit(error.code)
    if processes.leads():
        say(report.summary_table(summary))


def dry_run(config) -> None:
    """Prints the plan of a configuration, and trains nothing."""
    from sparsefl_jax import devices, experiment, processes

    if config is None:
        raise ValueError("--config is missing, expected a file in configs/")
    devices.keep_compilations()
    told = experiment.plan(config, experiment.build(config))
    if processes.leads():
        say(told)


def prepare(name: str) -> None:
    """Gets and writes a TFDS data set."""
    from sparsefl_jax.data.prepare import prepare as get

    print(get(name))


def catalogue() -> str:
    """Methods, models, data sets, partitioners and configurations, a line each."""
    from sparsefl_jax import algorithms, data, models

    def first_line(thing) -> str:
        text = thing if isinstance(thing, str) else inspect.getdoc(thing) or ""
        return text.strip().splitlines()[0]

    groups = {
        "methods": algorithms.ALGORITHMS,
        "models": models.MODELS,
        "data sets": data.DATASETS,
        "partitioners": data.PARTITIONERS,
        "configs": {
            path.name: path.read_text().lstrip('"')
            for path in sorted(CONFIGS.glob("[!_]*.py"))
        },
    }
    lines = []
    for title, table in groups.items():
        lines += [f"{title}:"]
        lines += [f"  {name:22} {first_line(entry)}" for name, entry in table.items()]
    return "\n".join(lines)


def say(text: str) -> None:
    """Prints; letters that the output's encoding lacks become question marks."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))


def one_line(error: Exception) -> str:
    """An error's message without line breaks or the quotes of a KeyError.

    ml_collections puts the traceback of a configuration file into its own message; what
    the file said stands after the last, indented, line of it.
    """
    plain = isinstance(error, KeyError) and error.args
    text = str(error.args[0] if plain else error)
    if "Traceback" in text:
        lines = text.rstrip().splitlines()
        last = max(i for i, line in enumerate(lines) if line.startswith("  "))
        kind, _, told = " ".join(lines[last + 1 :]).partition(": ")
        text = told or kind
    return " ".join(text.split()) or type(error).__name__


def _unknown_field(error: Exception) -> str:
    """What ml_collections says, of a misspelt field in a sentence."""
    text = one_line(error)  # at times a repr of a repr
    found = re.fullmatch(
        r"\W*(\w+)\W*(?:Did you mean \W*(\w+).*)?", text.replace(r"\n", " ")
    )
    if not found or not str(error):
        return text
    said = f"the configuration has no field {found[1]!r}"
    return said + (f"; did you mean {found[2]!r}?" if found[2] else "")


def define_config(values):
    """Defines the flag `--config`: a file, with what other flags name in it.

    Where `--config.SECTION.name` names another entry than the file does, the section
    gets this one's arguments before ml_collections looks for what else is overridden.

    Args:
      values: absl's `FlagValues`.

    Returns:
      What holds the configuration once the flags are parsed.
    """
    from ml_collections.config_flags import config_flags

    from sparsefl_jax import configuration

    class Parser(config_flags.ConfigFileFlagParser):
        def parse(self, path):
            _check_file(path)
            config = super().parse(path)
            argv = values.read_flags_from_files(sys.argv, force_gnu=False)
            for at, arg in enumerate(argv):
                found = re.fullmatch(r"--?config\.(\w+)\.name(?:=(.*))?", arg)
                if found and found[1] in configuration.TABLES:
                    following = "".join(argv[at + 1 : at + 2])
                    entry = following if found[2] is None else found[2]
                    configuration.switch(config, found[1], entry)
            return config

    told = "A file in configs/."
    holder = config_flags.DEFINE_config_file("config", None, told, flag_values=values)
    values["config"].parser = Parser("config")
    return holder


def _check_file(path: str) -> None:
    """Refuses a configuration file that is not there, with the nearest that is."""
    file, _, _ = path.partition(":")
    if Path(file).is_file():
        return
    names = [path.stem for path in CONFIGS.glob("[!_]*.py")]
    near = difflib.get_close_matches(Path(file).stem, names, n=1)
    hint = f"did you mean configs/{near[0]}.py?" if near else "--list names configs"
    raise ValueError(f"--config={file}: there is no such file; {hint}")


def guarded(app, flags, main) -> None:
    """Runs `main` under absl; what a user can mend is told in one line.

    `SPARSEFL_DEBUG=1` lets every exception through with its traceback.

    Args:
      app, flags: absl's modules.
      main: takes the arguments that are not flags.
    """
    if os.environ.get("SPARSEFL_DEBUG"):
        return app.run(main)
    from sparsefl_jax import processes

    def parse(argv):
        try:
            return flags.FLAGS(argv)
        except (KeyError, AttributeError) as error:  # a field that is not there
            refuse(_unknown_field(error))
        except Exception as error:  # absl and ml_collections raise many kinds here
            refuse(error)

    def run(argv):
        try:
            main(argv)
        except (ValueError, OSError) as error:
            refuse(error)
        except (FloatingPointError, MemoryError) as error:
            processes.leave(f"error: {one_line(error)}")
        except RuntimeError as error:  # XLA's own errors are a kind of these
            if "RESOURCE_EXHAUSTED" not in str(error) and not processes.lost(error):
                raise
            processes.leave(f"error: {one_line(error)}")
        except KeyboardInterrupt:
            processes.leave("interrupted; the metrics so far are kept")

    def refuse(error):
        print(f"error: {one_line(error)}", file=sys.stderr)
        processes.leave(2)

    return app.run(run, flags_parser=parse)
