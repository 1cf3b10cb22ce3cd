"""The text of `--help`: what a user needs first; absl's own comes with --helpfull."""

import sys
import textwrap
from pathlib import Path

from sparsefl_jax.runs.config import defaults

_INDENT = 34

_HEAD = """\
Runs a method of sparse federated learning as a configuration describes it.

  {program} --list
  {program} --config=configs/flash_cifar10.py:mini --workdir=runs/a
  {program} --resume --workdir=runs/a
"""


def program() -> str:
    """Returns how this program was called: as a command, a module or a file."""
    name = Path(sys.argv[0]).name
    if name == "__main__.py":
        return "python -m sparsefl_jax"
    return f"python {name}" if name.endswith(".py") else name


def text(values, module: str) -> str:
    """Returns the help of the command line.

    Args:
      values: absl's `FlagValues`, with the flags defined.
      module: the name of the module that defines them.
    """
    config = defaults.default_config()
    sections = [name for name in config if hasattr(config[name], "to_dict")]
    lines = [_HEAD.format(program=program()), "Configuration:"]
    for flag, meaning in {
        "--config=FILE[:VARIANT]": values["config"].help,
        "--config.FIELD=VALUE": "Change a field, such as num_rounds or seeds.",
        "--config.SECTION.FIELD=VALUE": "Change a field of a section, such as "
        f"algorithm.name. The sections are {', '.join(sections)}.",
        "--fields[=SECTION]": values["fields"].help + " Beside --config, with its "
        "values; --fields=algorithm has the arguments of its method.",
    }.items():
        lines.append(_row(flag, meaning))
    lines += ["", "Other flags:"]
    for flag in values.get_key_flags_for_module(module):
        if flag.name not in ("config", "fields"):
            value = "" if flag.boolean else f"={flag.parser.flag_type().upper()}"
            lines.append(_row(f"--{flag.name}{value}", flag.help))
    lines += ["", "--helpfull lists the flags of absl and JAX too."]
    return "\n".join(lines)


def _row(flag: str, meaning: str) -> str:
    """Returns a flag and its help, indented.

    Example:
      >>> _row("--list", "Name all methods.")
      '  --list                          Name all methods.'
    """
    head = f"  {flag}".ljust(_INDENT - 1) + " "
    return textwrap.fill(
        meaning, 88, initial_indent=head, subsequent_indent=" " * _INDENT
    )
