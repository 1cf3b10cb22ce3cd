"""The law of what a client computes: no pass through the network is left out.

The method is built a second time, on a network that reports each of its applications by
a debug callback. This law alone runs it, in a plain loop of its own.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sparsefl_jax.core.algorithm import target
from sparsefl_jax.core.types import Batches
from sparsefl_jax.models import Model
from sparsefl_jax.sparsity import masks
from sparsefl_jax.testing import plain_loop, small_world
from sparsefl_jax.testing.compare import fail, leaves
from sparsefl_jax.testing.small_world import World

TOLERANCE = 1e-5  # of sums in float32
UNUSED = "a step whose result is not used counts too, unless `lax.cond` leaves it out"


def law_work(world: World) -> None:
    """Checks that `work` covers every pass of the network, and `count` all samples.

    The forward work of a kernel is at least the sum over passes of their valid samples
    times the share of its entries that is not 0. A derivative along a direction of the
    weights is a pass, and so is one with another key. A method whose metrics have
    `density` is charged at the mask of its personal models instead, which has this
    density.

    `count` is the number of valid samples in all epochs, or in all passes. A method
    that reads no more than the first batch may count that once.
    """
    reports: list = []
    algorithm = world.make(_report_inputs(world.network, reports))
    run = plain_loop.client_by_wire(world._replace(algorithm=algorithm, shared={}))
    personalize = algorithm.personalize and small_world.jit(algorithm.personalize)
    for round, cohort in enumerate(world.cohorts.tolist()):
        state = small_world.path(world)[0][round]
        for index in cohort:
            *others, info, data = plain_loop.inputs(world, state, round, index)
            data = _mark(data)
            reports.clear()
            passing = jax.device_get(run(*others, info, data))
            jax.effects_barrier()
            passes, metrics = _passes(reports, data), passing.metrics
            if "density" in metrics:
                if personalize is None:
                    fail(world, "work", "`density` is that of no personal model")
                models = personalize(world.key, state.server, passing.client, info)
                mask, stated = target(models).mask, metrics["density"]
                density = masks.density(mask, masks.select_all(mask))
                if not np.isclose(density, stated, rtol=TOLERANCE):
                    what = f"`density` is {stated}, that of the personal mask {density}"
                    fail(world, "work", what)
                shares = [np.mean(m) for m in jax.tree.leaves(mask)]
                passes = [(samples, shares) for samples, _ in passes]
            for what in _faults(world, metrics, passes, data):
                fail(world, "work", f"client {index} in round {round}: {what}")


def _report_inputs(model: Model, reports: list) -> Model:
    """Returns the network that also reports its inputs in each pass."""

    @jax.custom_jvp
    def seen(params, *inputs):
        jax.debug.callback(reports.append, (params, *inputs, ()))
        return params

    @seen.defjvp
    def derivative(primals, tangents):
        def forwards(_, tangent):
            jax.debug.callback(reports.append, (*primals, tangent))
            return tangent

        # Solves t = tangent; the transpose, by which gradients come back, is silent.
        solve = {"solve": forwards, "transpose_solve": lambda _, back: back}
        along = lax.custom_linear_solve(lambda t: t, tangents[0], **solve)
        return seen(*primals), along

    def apply(params, stats, x, *, train, weight=None, key=None):
        drawn = () if key is None else jax.random.key_data(key)
        params = seen(params, x, drawn)
        return model.apply(params, stats, x, train=train, weight=weight, key=key)

    return model._replace(apply=apply)


def _mark(data: Batches) -> Batches:
    """Lets padding point to a row of its own, as an evaluation has no weights."""
    x, y = (jnp.concatenate([v, jnp.zeros_like(v[:1])]) for v in (data.x, data.y))
    order = jnp.where(data.weight > 0, data.order, len(data.x))
    return data._replace(x=x, y=y, order=order)


def _passes(reports: list, data: Batches) -> list[tuple[frozenset, list]]:
    """Returns the samples of each pass, and the share of each leaf that is not 0.

    A pass that is computed again for its gradient, as by `jax.checkpoint`, counts once.
    """
    padding, passes = np.asarray(data.x[-1]).tobytes(), {}
    for params, x, key, tangent in jax.device_get(reports):
        samples = frozenset(row.tobytes() for row in x) - {padding}
        values, along = jax.tree.leaves(params), jax.tree.leaves(tangent)
        same = samples, *(v.tobytes() for v in (*values, *along, np.asarray(key)))
        if not along or any(v.any() for v in along):  # 0: of no derivative
            passes[same] = samples, [np.mean(v != 0) for v in values]
    return list(passes.values())


def _faults(world: World, metrics: dict, passes: list, data: Batches) -> Iterator[str]:
    """Yields what a client's metrics leave out."""
    for at, (path, stated) in enumerate(leaves(metrics["work"].forward)):
        ran = sum(len(samples) * shares[at] for samples, shares in passes)
        if jax.tree.leaves(world.layers)[at] and not stated >= ran * (1 - TOLERANCE):
            what = f"work.forward{path} is {stated:g}, and the network ran {ran:g}"
            yield f"{what}; {UNUSED}"
    valid, samples = np.sum(data.weight > 0, -1), [samples for samples, _ in passes]
    known = {int(valid.sum()), sum(map(len, samples))}
    if len(frozenset().union(*samples)) <= valid[0, 0]:
        known.add(int(valid[0, 0]))
    if metrics["count"].item() not in known:
        what = f"`count` is {metrics['count']:g}, expected one of {sorted(known)}"
        yield f"{what}; {UNUSED}"
