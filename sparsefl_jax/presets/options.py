"""Parses the argument of a configuration file."""

from sparsefl_jax.core.check import UserError, check


def parse_options(arg: str, *exclusive: tuple[str, ...]) -> set[str]:
    """Returns the options of a comma-separated argument.

    Args:
      arg: the text after the colon of `--config=FILE:ARG`.
      *exclusive: groups of options; at most one option of each may be given.

    Raises:
      ValueError: an option is unknown, or two options of a group are given.

    Example:
      >>> sorted(parse_options("nst,release", ("nst", "pdst"), ("paper", "release")))
      ['nst', 'release']
    """
    options = {part for part in arg.split(",") if part}
    allowed = dict.fromkeys(option for group in exclusive for option in group)
    for option in options:
        check("option", option, allowed)
    for group in exclusive:
        if len(options & set(group)) > 1:
            raise UserError(f"options {arg!r}, expected one of {', '.join(group)}")
    return options
