"""Attaches the name and arguments of a factory to what it returns."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")


def described(factory: Callable[P, T]) -> Callable[P, T]:
    """Decorates a factory so that its results carry its name and settings.

    They identify a run made in Python: two runs that differ in a setting are never
    mistaken for one another. It works for factories of networks, optimizers, losses,
    schedules and samplers, and `sfl.method` does the same for methods. If decorated
    factories call one another, the outermost gives the name.

    Args:
      factory: returns a function, a dataclass or a NamedTuple, such as an `Algorithm`,
        a `Model` or an optimizer of optax.

    Returns:
      The factory, whose result has a `name`, that of the factory or its argument
      `name`, and `settings`: its other arguments by name, with their defaults.

    Example:
      >>> @described
      ... def constant(rate, *, scale=2.0):
      ...     return lambda round: rate * scale
      >>> schedule = constant(0.5)
      >>> schedule(0), schedule.name, schedule.settings
      (1.0, 'constant', {'rate': 0.5, 'scale': 2.0})
    """
    signature = inspect.signature(factory)
    kinds = {name: p.kind for name, p in signature.parameters.items()}

    @functools.wraps(factory)
    def make(*args: P.args, **kwargs: P.kwargs) -> T:
        made: Any = factory(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        settings = {}
        for name, value in bound.arguments.items():
            several = kinds[name] is inspect.Parameter.VAR_KEYWORD
            settings |= value if several else {name: value}
        if any(made is value for value in settings.values()):
            return made  # it has a name of its own
        name = settings.pop("name") if "name" in kinds else factory.__name__
        known = {"name": name, "settings": settings}
        if dataclasses.is_dataclass(made):
            return cast(T, dataclasses.replace(cast(Any, made), **known))
        if isinstance(made, tuple) and known.keys() <= {*made._fields}:
            return made._replace(**known)
        if isinstance(made, tuple):  # such as optax's, which lacks these attributes
            made = type(type(made).__name__, (type(made),), {})(*made)
        vars(made).update(known)
        return made

    return make
