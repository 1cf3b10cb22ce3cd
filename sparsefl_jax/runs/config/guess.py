"""Guesses which field of a configuration was meant by a name that it does not have."""

from collections.abc import Iterable

from sparsefl_jax.core.flatten import flatten
from sparsefl_jax.core.validate import closest
from sparsefl_jax.runs.config import defaults


def unknown_field(name: str, allowed: Iterable[str]) -> str:
    """Returns the refusal of a field: what was meant, and what there is.

    Args:
      name: the field, with its section and a dot if it is in one.
      allowed: the names that the section has, or the configuration.

    Example:
      >>> print(unknown_field("lr", ["seed", "epochs"]))
      the configuration has no field 'lr'; did you mean 'optimizer.learning_rate'? it
      has epochs, seed
    """
    section, _, leaf = name.rpartition(".")
    guess = _guess(section, leaf, sorted(allowed))
    hint = f"did you mean {guess!r}? " if guess else ""
    there = f"{section or 'it'} has {', '.join(sorted(allowed))}"
    return f"the configuration has no field {name!r}; {hint}{there}"


def field(flag: str) -> str | None:
    """Returns the field that an unknown flag of the command line probably names.

    Example:
      >>> field("seed"), field("lr"), field("algorithm.density"), field("xyzzy")
      ('seed', 'optimizer.learning_rate', 'algorithm.density', None)
    """
    return flag if "." in flag else _guess("", flag, sorted(defaults.default_config()))


def _guess(section: str, leaf: str, allowed: list[str]) -> str | None:
    """Returns the field that was probably meant, the section's own before others."""
    prefix = f"{section}." if section else ""
    same_section = {prefix + name: name for name in allowed}
    every = flatten(defaults.default_config().to_dict())
    every = sorted(every, key=lambda path: "." in path)  # those of sections last
    others = {path: path.rpartition(".")[2] for path in every}
    for fields, meant in (
        (others, lambda name: name == leaf),
        (same_section, lambda name: _initials(name) == leaf),
        (others, lambda name: _initials(name) == leaf),
        (same_section, lambda name: name in closest(leaf, allowed)),
        (same_section, lambda name: leaf in name.split("_")),
        (others, lambda name: name in closest(leaf, others.values(), cutoff=0.8)),
    ):
        if found := [path for path, name in fields.items() if meant(name)]:
            return found[0]
    return None


def _initials(name: str) -> str:
    """Returns the first letters of a name's words.

    Example:
      >>> _initials("learning_rate")
      'lr'
    """
    return "".join(word[0] for word in name.split("_"))
