"""Configurations on the command line: their flags, and lists of their fields."""

import inspect
import re
import sys
from pathlib import Path

from absl import flags as absl_flags

from sparsefl_jax.config import defaults, fields
from sparsefl_jax.core import formats
from sparsefl_jax.core.check import UserError, blame, check, one_line, words
from sparsefl_jax.system import processes


def define_config(values) -> None:
    """Defines the flag `--config`, a file, and `--override`, which changes it.

    `parse_flags` writes `--config.FIELD=VALUE` as `--override=FIELD=VALUE`.

    Args:
      values: absl's `FlagValues`.
    """
    meaning = "A file in configs/ with a variant of it, or the config.json of a run."
    absl_flags.DEFINE_string("config", None, meaning, flag_values=values)
    meaning = "FIELD=VALUE, as --config.FIELD=VALUE."
    absl_flags.DEFINE_multi_string("override", [], meaning, flag_values=values)


def parse_flags(argv: list[str], values=absl_flags.FLAGS) -> list[str]:
    """Parses a command line, on which `--fields` without a value lists all fields.

    Args:
      argv: the command line.
      values: absl's `FlagValues`, as `define_config` leaves them.

    Returns:
      The arguments that are not flags.

    Raises:
      ValueError: absl cannot parse the command line.

    Example:
      >>> define_config(values := absl_flags.FlagValues())
      >>> parse_flags(["launch.py", "--config=a.py", "--config.seed=3"], values)
      ['launch.py']
      >>> values["override"].value
      ['seed=3']
    """
    try:
        words = values.read_flags_from_files(argv, force_gnu=False)
        words = ["--fields=all" if word == "--fields" else word for word in words]
        return values([re.sub(r"^--?config\.", "--override=", w) for w in words])
    except absl_flags.Error as error:
        raise UserError(one_line(error)) from error


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
        path = str(Path(resumed) / "config.json")
    if path is None and given:
        raise UserError("--config.FIELD=VALUE is set, expected --config=FILE with it")
    if path is None:
        return None
    with blame(f"--config={path}"):
        config = defaults.load_config(path)
    if path.endswith(".json") and resumed is None:
        config.fit.by = None  # a new run fits its budget anew
    left = defaults.override(config, given)
    # The numbers of another partition say nothing of this one.
    left = [field for field in left if not field.startswith("partition.")]
    if left and processes.leads():
        print(f"the file had set {', '.join(left)}, left out here", file=sys.stderr)
    return config


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
