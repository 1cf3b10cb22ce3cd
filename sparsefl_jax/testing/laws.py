"""The laws that every algorithm obeys, checked on any method.

    check_algorithm(my_method, strength=0.1)

Every law checks the same method in the same `small_world`: `signature` what the
functions return and use, `message_laws` what travels, `round_laws` what a round
computes, `work_law` what it charges.
States are compared round by round from equal starts, so that a difference in the last
bit cannot grow over rounds. "Equal" is 1e-6 of the largest entry, or of 1 if that is
more, and exact for integers and masks.
"""

import functools
import inspect
import io
import sys
import time
from collections.abc import Callable

from sparsefl_jax.core.algorithm import Optimizer
from sparsefl_jax.core.formats import format_seconds
from sparsefl_jax.data.federated import FederatedData
from sparsefl_jax.models import Model
from sparsefl_jax.testing import message_laws, round_laws, signature, work_law
from sparsefl_jax.testing.compare import ContractError as ContractError
from sparsefl_jax.testing.small_world import World, make_world

LAWS: dict[str, Callable[[World], None]] = {
    "signature": signature.law_signature,
    "pure": signature.law_pure,
    "keys": signature.law_keys,
    "types": round_laws.law_types,
    "start": round_laws.law_start,
    "fresh": message_laws.law_fresh,  # before `wire`, as it names the cause
    "wire": message_laws.law_wire,
    "known": message_laws.law_known,
    "chunks": round_laws.law_chunks,
    "segments": round_laws.law_segments,
    "jit": round_laws.law_jit,
    "order": round_laws.law_order,
    "padding": round_laws.law_padding,
    "bystanders": round_laws.law_bystanders,
    "zeros": message_laws.law_zeros,
    "bytes": message_laws.law_bytes,
    "work": work_law.law_work,
    "seeds": round_laws.law_seeds,
    "late": round_laws.law_late,
    "resume": round_laws.law_resume,
}


def check_algorithm(
    factory: Callable,
    *,
    progress: bool = True,
    num_rounds: int = 4,
    optimizer: Optimizer | None = None,
    model: Model | None = None,
    data: FederatedData | None = None,
    **kwargs,
) -> None:
    """Checks a method against all laws, in about half a minute on two cores.

    Args:
      factory: `factory(model, optimizer, **kwargs) -> Algorithm`.
      progress: whether to print each law with its seconds, and at the end that all
        hold, to standard error.
      num_rounds: of the small world, at least 4. A mask that moves first in a later
        round is seen by the laws 'known', 'zeros' and 'fresh' if the world has it.
      optimizer: the clients', as `local.make_optimizer` returns it, for a method that
        does not take all; None for SGD with momentum and a rate that decays.
      model: a network of your own, which reads the samples of `data`; None for
        `tiny_model`. The laws take as much longer as it compiles and trains.
      data: your own clients, at least five, of which the laws take the smallest, the
        largest and three between, with all their samples; None for those of the small
        world.
      **kwargs: of the factory.

    Raises:
      ContractError: names the first law that the method breaks, and where.
      ValueError: there are fewer than 4 rounds or 5 clients, a model without data or
        data without a model, or the factory refuses an argument.

    Example:
      >>> from sparsefl_jax.algorithms import fedavg
      >>> def silent(model, optimizer):
      ...     whole = fedavg(model, optimizer)
      ...     return whole.replace(update=lambda *args: (*whole.update(*args)[:2], {}))
      >>> check_algorithm(silent, progress=False)
      Traceback (most recent call last):
      sparsefl_jax.testing.compare.ContractError: law 'types', silent: the metrics of
      `update` lack loss, correct, count, work
    """
    begin = time.perf_counter()
    own = {"optimizer": optimizer, "model": model, "data": data}
    world = make_world(factory, kwargs, num_rounds=num_rounds, **own)
    shown = sys.stderr if progress else io.StringIO()
    say = functools.partial(print, file=shown, flush=True)
    for name, law in LAWS.items():
        law_begin = time.perf_counter()
        law(world)
        took = format_seconds(time.perf_counter() - law_begin)
        first, *_ = inspect.getdoc(law).splitlines()
        say(f"{name:10} {first} {took}")
    seconds = format_seconds(time.perf_counter() - begin)
    say(f"{len(LAWS)} laws hold for {world.name} in {num_rounds} rounds, {seconds}")
