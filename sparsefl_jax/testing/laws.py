"""The laws that every algorithm obeys, checked on anyone's method.

    check_algorithm(my_method, strength=0.1)

Every law looks at the same method in the same `small_world`: `signature` at what the
functions return, `message_laws` at what travels, `round_laws` at what a round computes.
States are compared round by round from equal starts, so that a difference in the last
bit has no rounds to grow in. "Equal" is 1e-6 of the largest entry, or of 1 if that is
more, and exact for integers and masks.
"""

import functools
import inspect
import sys
import time
from collections.abc import Callable

import jax

from sparsefl_jax.core.formats import format_seconds
from sparsefl_jax.testing.compare import ContractError
from sparsefl_jax.testing.message_laws import (
    law_bytes,
    law_fresh,
    law_known,
    law_wire,
    law_zeros,
)
from sparsefl_jax.testing.round_laws import (
    law_bystanders,
    law_chunks,
    law_jit,
    law_order,
    law_padding,
    law_resume,
    law_seeds,
    law_segments,
    law_start,
    law_types,
)
from sparsefl_jax.testing.signature import law_signature
from sparsefl_jax.testing.small_world import World, make_world

LAWS: dict[str, Callable[[World], None]] = {
    "signature": law_signature,
    "types": law_types,
    "start": law_start,
    "wire": law_wire,
    "known": law_known,
    "chunks": law_chunks,
    "segments": law_segments,
    "jit": law_jit,
    "order": law_order,
    "padding": law_padding,
    "bystanders": law_bystanders,
    "zeros": law_zeros,
    "bytes": law_bytes,
    "fresh": law_fresh,
    "seeds": law_seeds,
    "resume": law_resume,
}


def check_algorithm(factory: Callable, *, progress: bool = True, **kwargs) -> None:
    """Checks a method against all laws; takes seconds, most of them compilation.

    Args:
      factory: `factory(model, optimizer, **kwargs) -> Algorithm`.
      progress: whether to print each law with its seconds, and at the end that all
        hold, to standard error.
      **kwargs: of the factory.

    Raises:
      ContractError: names the first law that the method breaks, and where.

    Example:
      >>> from sparsefl_jax.algorithms import fedavg
      >>> def silent(model, optimizer):
      ...     whole = fedavg(model, optimizer)
      ...     return whole._replace(update=lambda *args: (*whole.update(*args)[:2], {}))
      >>> check_algorithm(silent, progress=False)
      Traceback (most recent call last):
      sparsefl_jax.testing.compare.ContractError: law 'types', silent: the metrics of
      `update` lack 'correct'
    """
    begin = time.perf_counter()
    world = make_world(factory, kwargs)
    say = functools.partial(print, file=sys.stderr, flush=True) if progress else _quiet
    for name, law in LAWS.items():
        say(f"{name:10} {_checked(law)} ...", end=" ")
        law_begin = time.perf_counter()
        try:
            law(world)
        except Exception as error:
            say("broken")
            if not isinstance(error, jax.errors.UnexpectedTracerError):
                raise
            what = "a function uses what another one computed and did not return"
            raise ContractError(f"law '{name}', {world.name}: {what}") from error
        say(f"{time.perf_counter() - law_begin:.1f} s")
    seconds = format_seconds(time.perf_counter() - begin)
    say(f"{len(LAWS)} laws hold for {world.name}, {seconds}")


def _checked(law: Callable) -> str:
    """Returns what a law checks, from its docstring."""
    first = inspect.getdoc(law).splitlines()[0]
    return first.removeprefix("Checks ").removeprefix("that ").removesuffix(".")


def _quiet(*args, **kwargs) -> None:
    """Prints nothing."""
