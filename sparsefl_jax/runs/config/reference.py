"""Lists the fields of a configuration, for `launch.py --fields`."""

import inspect
import re
from types import UnionType
from typing import get_args, get_origin

import optax

from sparsefl_jax.core.named import named
from sparsefl_jax.core.validate import closest
from sparsefl_jax.runs.config import defaults, fields, registry
from sparsefl_jax.runs.config.lines import LINES
from sparsefl_jax.training import local


def listing(section: str = "", config=None) -> str:
    """Returns fields with their types and defaults and a line on each.

    Args:
      section: a section; a method, network or partition, whose arguments are listed;
        or '' for all fields.
      config: where sections have their names from, by default `default_config()`. Its
        values stand behind those that differ from the default.

    Raises:
      ValueError: there is no such section.

    Example:
      >>> print(listing("until"))
      until.gbit      float  None  ends the run after this traffic, 1e9 bits both ways
      until.pflop     float  None  ends the run after these training FLOPs, 1e15
      until.accuracy  float  None  ends the run at this accuracy, a share
      until.hours     float  None  ends the run after so many hours of the system's time
    """
    config = defaults.default_config() if config is None else config
    sections = [name for name in config if hasattr(config[name], "to_dict")]
    if section in sections:
        return _of_section(section, config[section].get("name"), config[section])
    if ":" in section:
        return _of_section(_field_of(section), section, {"name": section})
    for field, table in registry.TABLES.items():
        if section in table:
            return _of_section(field, section, {"name": section})
    if section:
        known = [*sections, *(name for t in registry.TABLES.values() for name in t)]
        near = closest(section, known)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(
            f"--fields={section}{hint}, expected one of {', '.join(sections)}, or a "
            "name that --list prints"
        )
    listed = [
        "--config.NAME=VALUE sets a field, --config.SECTION.NAME=VALUE one of a section"
    ]
    usual = defaults.default_config()
    plain = [
        (name, fields.kind(name), usual[name], LINES.get(name, ""), config[name])
        for name in sorted(config, key=_place)
        if name not in sections
    ]
    listed += ["", _table(plain)]
    for name in sections:
        listed += ["", _of_section(name, config[name].get("name"), config[name])]
    return "\n".join(listed)


def _field_of(name: str) -> str:
    """Returns the section that a `module:function` belongs to, by its first argument.

    Raises:
      ValueError: there is no such function, or it belongs nowhere.
    """

    def first(function):
        return next(iter(inspect.signature(function).parameters), None)

    argument = first(named("--fields", name, {}))
    taken = {f: {*map(first, t.values())} for f, t in registry.TABLES.items()}
    for field, arguments in taken.items():
        if argument in arguments:
            return field
    known = sorted(set().union(*taken.values()))
    raise ValueError(
        f"--fields={name}: its first argument is {argument}, expected one of "
        f"{', '.join(known)}"
    )


def argument_lines(factory) -> dict[str, str]:
    """Returns the `Args:` of a docstring by name, each on one line.

    Example:
      >>> def f(a, *, b=1):
      ...     '''Adds.
      ...
      ...     Args:
      ...       a: a number.
      ...       b: another, at
      ...         least 1.
      ...     '''
      >>> argument_lines(f)
      {'a': 'a number.', 'b': 'another, at least 1.'}
    """
    text = inspect.getdoc(factory) or ""
    block = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", text, re.DOTALL | re.MULTILINE)
    found, names = {}, []
    for line in block[1].splitlines() if block else ():
        if head := re.match(r"  ([\w*, ]+): *(.*)", line):
            names = [name.strip(" *") for name in head[1].split(",")]
            found |= dict.fromkeys(names, head[2])
        elif line.strip():
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return found


def lines(field: str, name: str | None) -> dict[str, str]:
    """Returns the line of every field that a section may hold, '' where there is none.

    Args:
      field: the section.
      name: the entry that it names, if any.
    """
    factory = _factory(field, name)
    documented = argument_lines(factory) if factory else {}
    if field.endswith("optimizer"):
        documented |= argument_lines(local.make_optimizer)
    return {
        key: LINES.get(f"{field}.{key}")
        or documented.get(key, "").split("; ")[0].rstrip(".")
        for key in fields.kinds(field, name)
    }


def _of_section(field: str, name: str | None, section) -> str:
    """Lists the fields of a section, below what it names."""
    usual = defaults.default_config()
    given = {key: p.default for key, p in fields.parameters(field, name).items()}
    given |= {key: usual[field][key] for key in usual[field]}
    explained = lines(field, name)
    rows = [
        (f"{field}.{key}", kind, given.get(key), explained[key], section.get(key))
        for key, kind in fields.kinds(field, name).items()
    ]
    rows.sort(key=lambda row: _place(row[0]))
    factory = _factory(field, name)
    first = (inspect.getdoc(factory) or "").partition("\n")[0] if factory else ""
    return "\n".join([f"{name}: {first}"] * bool(first) + [_table(rows)])


def _place(field: str) -> int:
    """Returns where a field stands in `LINES`; those that are not there come last."""
    return list(LINES).index(field) if field in LINES else len(LINES)


def _factory(field: str, name: str | None):
    """Returns what a section names, or None."""
    if name is None:
        return None
    if field.endswith("optimizer"):
        return getattr(optax, name, None)
    return registry.factory(field, name) if field in registry.TABLES else None


def _table(rows: list[tuple]) -> str:
    """Aligns names, types, defaults and lines."""
    cells = []
    for name, kind, usual, line, now in rows:
        default = "required" if usual is inspect.Parameter.empty else repr(usual)
        line += "" if now is None or now == usual else f" (here {now!r})"
        cells.append((name, _type_name(kind), default, line))
    widths = [max((len(row[i]) for row in cells), default=0) for i in range(3)]
    return "\n".join(
        "  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[3]])
        for row in cells
    )


def _type_name(kind) -> str:
    """Returns the name of a type.

    Example:
      >>> _type_name(tuple[int, ...]), _type_name(str | None)
      ('tuple of int', 'str or None')
    """
    if isinstance(kind, UnionType):
        return " or ".join(map(_type_name, get_args(kind)))
    if get_origin(kind) is tuple:
        return f"tuple of {_type_name(get_args(kind)[0])}"
    return {object: "any", type(None): "None"}.get(kind) or kind.__name__
