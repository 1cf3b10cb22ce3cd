"""How many bytes a traced computation holds at a time, without compiling it.

The equations run in order and a value lives until its last use, as XLA's buffers do.
Elementwise equations are fused into those that use them, unless one of these needs its
operands in memory, as a matrix product does.
"""

import collections
import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from jax.extend.core import Literal

_CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "remat2")
_LOOPS = ("while", "scan")
_ELEMENTWISE = (
    "abs add add_any and broadcast_in_dim ceil clamp convert_element_type copy cos div "
    "eq exp exp2 expand_dims floor ge gt integer_pow iota is_finite le log log1p "
    "logistic lt max min mul ne neg not or pow reshape round rsqrt select_n sign sin "
    "sqrt square squeeze stop_gradient sub tanh xor random_wrap random_unwrap "
    "shift_left shift_right_logical"
)
_FUSED = frozenset(_ELEMENTWISE.split())
_FUSING = _FUSED | {"reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or"}


class _Step(NamedTuple):
    """An equation; values are named by numbers."""

    name: str
    reads: list[int]
    writes: list[int]
    inner: int  # bytes of its own body beside reads and writes


def peak_bytes(jaxpr, kept: int | None = None) -> int:
    """The most bytes alive at a time beside the arguments, results included.

    Args:
      jaxpr: a `Jaxpr`, not closed.
      kept: how many of the first arguments someone else still needs; the others make
        room after their last use, as what a loop carries does. None: all.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> x = jnp.zeros((8, 8), jnp.float32)
      >>> peak_bytes(jax.make_jaxpr(lambda x: (x @ x) @ x)(x).jaxpr)  # two of 8 x 8
      512
      >>> peak_bytes(jax.make_jaxpr(lambda x: jnp.sum(x * 2.0 + 1.0))(x).jaxpr)
      4
    """
    values = _Values()
    arguments = [values.name(var) for var in jaxpr.invars]
    given = set(arguments[len(arguments) if kept is None else kept :])
    steps = list(_steps(jaxpr, values))
    results = {values.name(v) for v in jaxpr.outvars}
    stored = results.union(*(s.writes for s in steps if s.name not in _FUSED))
    stored = stored.union(*(s.reads for s in steps if s.name not in _FUSING))
    stored = (stored - set(arguments)) | given
    last = _last_uses(steps, results, stored)
    dying = collections.defaultdict(list)
    for value in stored & last.keys():
        dying[last[value]].append(value)
    start = alive = peak = values.num_bytes(given)
    for index, step in enumerate(steps):
        written = values.num_bytes(stored.intersection(step.writes))
        over = values.num_bytes(dying[index])
        in_place = step.name in _FUSED or step.name in _LOOPS
        alive += written - (min(over, written) if in_place else 0)
        peak = max(peak, alive + step.inner)
        alive -= over - (min(over, written) if in_place else 0)
        # A result that nobody reads is gone at once.
        alive -= values.num_bytes(stored.intersection(step.writes) - last.keys())
    return peak - start


def _last_uses(steps: list[_Step], results: set[int], stored: set[int]) -> dict:
    """The index of the step that is the last to need a value."""
    last = dict.fromkeys(results, len(steps))
    for index in reversed(range(len(steps))):
        step = steps[index]
        ends = [last[v] for v in step.writes if v not in stored and v in last]
        for read in step.reads:  # what is fused reads when its users do
            last[read] = max([last.get(read, index), *ends])
    return last


class _Values:
    """Numbers for the values of a jaxpr and of the calls in it, and their bytes."""

    def __init__(self):
        self.sizes = []
        self.names = {}

    def name(self, var) -> int:
        """The number of a value, a new one for one that has none yet."""
        if isinstance(var, Literal):
            return self.new(0)
        if var not in self.names:
            self.names[var] = self.new(_num_bytes(var.aval))
        return self.names[var]

    def new(self, size: int) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1

    def num_bytes(self, values: Iterable[int]) -> int:
        """Bytes of these values together."""
        return sum(self.sizes[v] for v in values)


def _steps(jaxpr, values: _Values) -> Iterator[_Step]:
    """The equations in order, those of calls in the place of the call."""
    for eqn in jaxpr.eqns:
        reads = [values.name(v) for v in eqn.invars]
        bodies = list(_bodies(eqn))
        if eqn.primitive.name in _CALLS and len(bodies) == 1:
            ((body, _),) = bodies
            outer, values.names = (
                values.names,
                dict(zip(body.invars, reads, strict=True)),
            )
            yield from _steps(body, values)
            results = [values.name(v) for v in body.outvars]
            values.names = outer | dict(zip(eqn.outvars, results, strict=True))
            continue
        writes = [values.name(v) for v in eqn.outvars]
        inner = max((peak_bytes(*body) for body in bodies), default=0)
        if eqn.primitive.name not in _LOOPS:  # a branch's results are the equation's
            inner = max(0, inner - values.num_bytes(writes))
        yield _Step(eqn.primitive.name, reads, writes, inner)


def _bodies(eqn) -> Iterator[tuple]:
    """The jaxprs of an equation's loop, branches or call, with `kept` of each."""
    kept = {
        "body_jaxpr": eqn.params.get("body_nconsts"),
        "jaxpr": eqn.params.get("num_consts") if eqn.primitive.name == "scan" else None,
    }
    for name, value in eqn.params.items():
        for part in value if isinstance(value, tuple | list) else (value,):
            part = getattr(part, "jaxpr", part)
            if hasattr(part, "eqns"):
                yield part, kept.get(name)


def _num_bytes(aval) -> int:
    if not hasattr(aval, "shape"):
        return 0
    return math.prod(aval.shape) * aval.dtype.itemsize
