"""What a method's program tells of its messages before anything is computed.

Functions are traced by shape. A value that the program hands through is known to be the
same, and one that nothing reaches what training changes is known to stay.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
from jax.extend.core import Literal

from sparsefl_jax.core.algorithm import Algorithm, target
from sparsefl_jax.core.types import ClientInfo, Context, PyTree, SparseModel


class Facts(NamedTuple):
    """What is known of a packet; None where it depends on the data."""

    sent: bool | None
    fresh: bool | None
    mask_of: str | None  # an uplink: the packet that brought this very mask down


class Structure(NamedTuple):
    """What is known of a stage's messages and masks.

    The three that tell of beginnings are True where key, budget and perhaps the mask
    that the stage starts from decide, but no weight.
    """

    down: dict[str, Facts]
    up: dict[str, Facts]
    first: bool  # the masks of the first downlinks
    inherits: bool  # these are the very ones that the stage starts from
    stays: bool  # the masks of all other downlinks are those of the first
    deployed: bool  # the mask that is deployed after any round
    reads_start: bool  # whether any of them depends on the mask it starts from


def read(algorithm: Algorithm, work, model: SparseModel) -> Structure:
    """Reads the traced programs of a method.

    Args:
      algorithm: the method.
      work: of one of its clients, a `checks.ClientWork`.
      model: what it starts from, arrays or shapes.
    """
    down, up, total = _messages(work)
    server, (key, _, last_round, info, *_) = work.shared[2], work.own
    moment = key, work.shared[0], last_round, info.index, info.num_examples

    def masks_sent(server, budget, moment):
        key, round, last_round, index, num_examples = moment
        ctx = Context(round, last_round, ClientInfo(index, num_examples, budget))
        message = algorithm.broadcast(key, ctx, server)
        return [jax.tree.leaves(packet.mask) for packet in message.values()]

    def mask_deployed(server, key):
        models = algorithm.deploy(key, server)
        return jax.tree.leaves(target(models).mask)

    def at_start(mask, values, key, budget, moment):
        server = algorithm.init(key, SparseModel(values[0], mask, values[1]))
        first = masks_sent(server, budget, moment)
        return jax.tree.leaves(first), mask_deployed(server, moment[0])

    def later(server, key, round, total):
        return algorithm.aggregate(key, round, server, total)[0]

    sent, last = sources(
        at_start,
        mask=model.mask,
        values=(model.params, model.stats),
        key=key,
        budget=info.budget,
        moment=moment,
    )
    handed_on = sources(
        later, server=server, key=key, round=work.shared[0], total=total
    )
    kept = {
        ("server", place)
        for place, leaf in enumerate(jax.tree.leaves(handed_on))
        if leaf.same == ("server", place)
    }
    again = sources(masks_sent, server=server, budget=info.budget, moment=moment)
    remains = sources(mask_deployed, server=server, key=key)

    def stays(leaves, *others):
        return all(
            leaf.of <= kept.union((name, 0) for name in others) for leaf in leaves
        )

    return Structure(
        down,
        up,
        first=all(leaf.names <= {"mask", "key", "budget"} for leaf in sent),
        inherits=all(leaf.same is not None and leaf.same[0] == "mask" for leaf in sent),
        stays=stays(jax.tree.leaves(again), "budget"),
        deployed=all(leaf.names <= {"mask", "key"} for leaf in last) and stays(remains),
        reads_start=any("mask" in leaf.names for leaf in [*sent, *last]),
    )


@dataclasses.dataclass(frozen=True)
class Source:
    """The arguments that a result is computed from."""

    of: frozenset  # pairs of an argument's name and its leaf's place
    same: tuple[str, int] | None  # the leaf that it is

    @property
    def names(self) -> set[str]:
        """Returns the names of the arguments."""
        return {name for name, _ in self.of}


def sources(function: Callable, **arguments) -> PyTree:
    """Finds what each result of a function is computed from, a tree of `Source`.

    Args:
      function: of arrays; it is traced.
      **arguments: trees of arrays or shapes.

    Example:
      >>> a, b = sources(lambda x, y: (x, x + y[1]), x=1.0, y=[2.0, 3.0])
      >>> a.same, sorted(b.of), b.same
      (('x', 0), [('x', 0), ('y', 1)], None)
    """
    trace = jax.make_jaxpr(lambda given: function(**given), return_shape=True)
    closed, shapes = trace(arguments)
    labels = [
        (name, place)
        for name in sorted(arguments)  # as JAX flattens dictionaries
        for place in range(len(jax.tree.leaves(arguments[name])))
    ]
    same = dict(zip(closed.jaxpr.invars, labels, strict=True))
    found = {var: frozenset([label]) for var, label in same.items()}

    def read(var):
        return frozenset() if isinstance(var, Literal) else found.get(var, frozenset())

    for eqn in closed.jaxpr.eqns:
        each = frozenset().union(*map(read, eqn.invars))
        found |= dict.fromkeys(eqn.outvars, each)
    told = [
        Source(read(v), None if isinstance(v, Literal) else same.get(v))
        for v in closed.jaxpr.outvars
    ]
    return jax.tree.unflatten(jax.tree.structure(shapes), told)


def _messages(work) -> tuple[dict[str, Facts], dict[str, Facts], PyTree]:
    """Returns the facts of both messages, and the shapes of the summand."""
    traced = work.function.trace(*work.shared, *work.own)
    closed, told = traced.jaxpr, traced.out_info
    constants = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    down, up, *_ = jax.tree.unflatten(jax.tree.structure(told), closed.jaxpr.outvars)
    came = {_mask(packet): name for name, packet in down.items() if _mask(packet)}

    def constant(var) -> bool | None:
        if isinstance(var, Literal):
            return bool(var.val)
        return bool(constants[var]) if var in constants else None

    def facts(packet) -> Facts:
        sent, fresh = constant(packet.sent), constant(packet.fresh)
        return Facts(sent, fresh, came.get(_mask(packet)))

    down, up = (
        {name: facts(packet) for name, packet in message.items()}
        for message in (down, up)
    )
    return down, up, jax.tree.map(lambda v: v.update(weak_type=False), told[2])


def _mask(packet) -> tuple:
    return tuple(jax.tree.leaves(packet.mask))
