"""The names that a configuration may use, and the arguments that each of them takes."""

import contextlib
import inspect
import re
from collections.abc import Container, Iterator

from sparsefl_jax import algorithms, models
from sparsefl_jax import data as datasets
from sparsefl_jax.core.named import named

STAGE = {
    **dict.fromkeys(("num_rounds", "cohort_size", "epochs", "batch_size"), int),
    "drop_last": bool,
}
SECTION_WIDE = {  # what a section holds beside the arguments of the entry it names
    "first_stage": STAGE,
    "model": {"dtype": str},
    "partition": {
        "test_fraction": float,
        "feature_shift": str,
        "shift_strength": float,
    },
}
TABLES = {  # what the `name` of a section is looked up in
    "algorithm": algorithms.ALGORITHMS,
    "first_stage": algorithms.ALGORITHMS,
    "model": models.MODELS,
    "partition": datasets.PARTITIONERS,
}


def default_arguments(field: str, name) -> dict:
    """Returns the default arguments of an entry; {} for an unknown one."""
    try:
        found = arguments(factory(field, name)) if isinstance(name, str) else {}
    except ValueError:
        return {}
    return {k: p.default for k, p in found.items() if p.default is not p.empty}


def arguments(factory) -> dict:
    """Returns the arguments of a factory that a configuration can set."""
    given = ("name", "num_clients", "seed", "users", "labels_test", "server_optimizer")
    return {
        name: p
        for name, p in inspect.signature(factory).parameters.items()
        if name not in given and (p.kind is p.KEYWORD_ONLY or p.default is not p.empty)
    }


def readers(field: str, *keys: str) -> list[str]:
    """Returns the entries of a table that take at least one of these arguments.

    Example:
      >>> readers("partition", "alpha")
      ['dirichlet', 'lda', 'quantity']
    """
    taken = {n: inspect.signature(f).parameters for n, f in TABLES[field].items()}
    return sorted(
        name for name, arguments_of in taken.items() if arguments_of.keys() & set(keys)
    )


def refuse_unread(field: str, section: dict, key: str) -> None:
    """Refuses an argument that only other entries of a section take.

    Raises:
      ValueError: names those that do.

    Example:
      >>> refuse_unread("partition", {"name": "iid", "k": 2}, "k")
      Traceback (most recent call last):
        ...
      ValueError: partition.k=2 is not read by 'iid' but by shards
    """
    table = TABLES.get(field, {})
    names = sorted(name for name in table if key in arguments(table[name]))
    if names and section["name"] not in names:
        raise ValueError(
            f"{field}.{key}={section[key]!r} is not read by {section['name']!r} but by "
            f"{', '.join(names)}"
        )


def factory(field: str, name: str):
    """Returns what a section names: an entry of its table, or `module:function`.

    Raises:
      ValueError: if there is no such thing.
    """
    return named(f"{field}.name", name, TABLES[field])


@contextlib.contextmanager
def naming(section: str, arguments: Container[str]) -> Iterator[None]:
    """Puts the section before the name of an argument that a factory refuses.

    Example:
      >>> with naming("algorithm", ("density",)):
      ...     raise ValueError("density=2, expected in (0, 1]")
      Traceback (most recent call last):
      ValueError: algorithm.density=2, expected in (0, 1]
    """
    try:
        yield
    except ValueError as error:
        named_first = re.match(r"\w*", str(error))[0]
        if named_first not in arguments:
            raise
        raise ValueError(f"{section}.{error}") from error
