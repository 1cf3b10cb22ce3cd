"""Ways to break a method: each breaks the laws that `BROKEN` names."""

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.sparsity import masks, top_k
from sparsefl_jax.testing import small_world
from sparsefl_jax.wire.packets import Packet


def types(whole):
    """Returns statistics in another dtype."""

    def aggregate(key, round, server, total):
        server, metrics = whole.aggregate(key, round, server, total)
        half = jax.tree.map(lambda v: v.astype(jnp.bfloat16), server.stats)
        return server._replace(stats=half), metrics

    return whole._replace(aggregate=aggregate)


def impure_start(whole):
    """Starts clients from random numbers that do not follow from the key."""
    rng = np.random.default_rng(0)

    def init_client(key, handed, info):
        return {"noise": jnp.float32(rng.normal()) + info.budget}

    return whole._replace(init_client=init_client)


def handed_twice(whole):
    """Hands clients another model in every round, and starts them from the first."""

    def handed(server):
        return {"params": Packet(server.params)}

    def init_client(key, handed, info):
        return handed["params"].values

    return whole._replace(handed=handed, init_client=init_client)


def impure_update(whole):
    """Trains with another factor in every trace."""
    traces = itertools.count(1)

    def update(*args):
        uplink, client, metrics = whole.update(*args)
        factor = jnp.float32(next(traces))
        delta = jax.tree.map(lambda v: v * factor, uplink["delta"].values)
        return uplink | {"delta": Packet(delta)}, client, metrics

    return whole._replace(update=update)


def reads_padding(whole):
    """Lets the delta depend on all rows of x and on the number of steps."""

    def update(key, ctx, downlink, client, batches):
        uplink, client, metrics = whole.update(key, ctx, downlink, client, batches)
        mean = jnp.mean(batches.x) / batches.num_steps.astype(jnp.float32)
        delta = jax.tree.map(lambda v: v + mean, uplink["delta"].values)
        return uplink | {"delta": Packet(delta)}, client, metrics

    return whole._replace(update=update)


def moving_mask(tree, round):
    """Returns a mask of every other entry: the even ones in even rounds."""

    def parity(leaf):
        return jnp.arange(leaf.size).reshape(leaf.shape) % 2 == round % 2

    return jax.tree.map(parity, tree)


def leaky_packet(whole):
    """Claims that a mask holds the delta; the mask moves and is never paid for."""

    def update(key, ctx, *args):
        uplink, client, metrics = whole.update(key, ctx, *args)
        delta = uplink["delta"].values
        mask = moving_mask(delta, ctx.round)
        packet = Packet(delta, mask, fresh=False, index="bitmap")
        return uplink | {"delta": packet}, client, metrics

    return whole._replace(update=update)


def carrying(whole, name, extra, read=None):
    """Sends a packet more, `extra(delta, batches)`; `read(delta, packet)` uses it."""

    def update(key, ctx, downlink, client, batches):
        uplink, *rest = whole.update(key, ctx, downlink, client, batches)
        packet = extra(uplink["delta"].values, batches)
        return uplink | {name: packet}, *rest

    def contribute(ctx, uplink):
        delta = uplink["delta"].values
        delta = read(delta, uplink[name]) if read else delta
        return whole.contribute(ctx, {"delta": Packet(delta), "stats": uplink["stats"]})

    return whole._replace(update=update, contribute=contribute)


def wide_codes(whole):
    """Sends codes that do not fit the bits that are charged for them."""
    codes = Packet(jnp.full((3,), 99, jnp.int32), bits=4)
    return carrying(whole, "codes", lambda delta, batches: codes)


def signs(delta, **settings):
    """Returns zeros on a mask that is the sign of the delta."""
    mask = jax.tree.map(lambda v: v > 0, delta)
    return Packet(jax.tree.map(jnp.zeros_like, delta), mask, bits=0, **settings)


def unsent(whole):
    """Broadcasts a model that is not sent, and yet is read."""

    def broadcast(*args):
        down = whole.broadcast(*args)
        return {n: replace(packet, sent=False) for n, packet in down.items()}

    return whole._replace(broadcast=broadcast)


def remembered(whole):
    """Lets `contribute` read what `update` kept for it outside the message."""
    kept = {}

    def update(*args):
        uplink, client, metrics = whole.update(*args)
        kept.update(uplink)
        return {}, client, metrics

    def contribute(ctx, uplink):
        del uplink
        return whole.contribute(ctx, kept)

    return whole._replace(update=update, contribute=contribute)


def unsent_mask(whole):
    """Reads the mask of a packet that is not sent."""

    def read(delta, packet):
        return jax.tree.map(lambda v, m: v + 0.01 * m, delta, packet.mask)

    unsent = {"sent": False, "index": "bitmap"}
    return carrying(whole, "signs", lambda delta, _: signs(delta, **unsent), read)


def free_labels(whole):
    """Sends free of charge how many samples a client has of every class."""

    def counts(delta, batches):
        return Packet(jnp.bincount(batches.y, length=small_world.CLASSES), bits=0)

    return carrying(whole, "counts", counts)


def free_mask(whole):
    """Sends what was trained in a mask that is free."""
    return carrying(whole, "signs", lambda delta, batches: signs(delta, index="none"))


def free_top_k(whole):
    """Sends the top k of the delta without paying for positions, an easy mistake."""

    def update(*args):
        uplink, client, metrics = whole.update(*args)
        delta = uplink["delta"].values
        magnitude = jax.tree.map(jnp.abs, delta)
        mask = top_k.largest_overall(magnitude, 20, masks.everything(delta))
        packet = Packet(masks.apply(delta, mask), mask, index="none")
        return uplink | {"delta": packet}, client, metrics

    return whole._replace(update=update)


def free_magnitudes(whole):
    """Sends in a free mask which features of a client's samples are large."""

    def large(delta, batches):
        mask = jnp.mean(jnp.abs(batches.x), 0) > 0.8
        return Packet(jnp.zeros(mask.shape), mask, bits=0, index="none")

    return carrying(whole, "features", large)


def turned_back(whole):
    """Alternates between two masks, and charges each only once."""

    def update(key, ctx, *args):
        uplink, client, metrics = whole.update(key, ctx, *args)
        delta = uplink["delta"].values
        mask = moving_mask(delta, ctx.round)
        values, first = masks.apply(delta, mask), ctx.round < 2
        packet = Packet(values, mask, fresh=first, index="bitmap")
        return uplink | {"delta": packet}, client, metrics

    return whole._replace(update=update)


def charged_again(whole):
    """Charges a mask that never changes in every round, down and up."""

    def fixed(packet):
        mask = jax.tree.map(lambda v: jnp.arange(v.size) % 2 < 1, packet.values)
        mask = jax.tree.map(lambda m, v: m.reshape(v.shape), mask, packet.values)
        return replace(
            packet, values=masks.apply(packet.values, mask), mask=mask, index="bitmap"
        )

    def broadcast(*args):
        down = whole.broadcast(*args)
        return down | {"params": fixed(down["params"])}

    return whole._replace(broadcast=broadcast)


def charged_back(whole):
    """Charges a client for returning the mask that it received."""
    down = charged_again(whole)

    def broadcast(key, ctx, server):
        message = down.broadcast(key, ctx, server)
        first = ctx.last_round < 0
        return message | {"params": replace(message["params"], fresh=first)}

    def update(key, ctx, downlink, client, batches):
        uplink, client, metrics = whole.update(key, ctx, downlink, client, batches)
        mask = downlink["params"].mask
        delta = masks.apply(uplink["delta"].values, mask)
        return uplink | {"delta": Packet(delta, mask, index="coo")}, client, metrics

    return whole._replace(broadcast=broadcast, update=update)


def free_of_charge(whole):
    """Declares what was trained common knowledge."""

    def update(*args):
        uplink, client, metrics = whole.update(*args)
        free = {n: replace(packet, bits=0) for n, packet in uplink.items()}
        return free, client, metrics

    return whole._replace(update=update)


def changing_metrics(whole, change):
    """Reports what `change(metrics)` returns beside what was reported."""

    def update(*args):
        uplink, client, metrics = whole.update(*args)
        return uplink, client, metrics | change(metrics)

    return whole._replace(update=update)


def no_work(whole):
    """States that nothing was multiplied."""
    return changing_metrics(
        whole, lambda metrics: {"work": jax.tree.map(jnp.zeros_like, metrics["work"])}
    )


def one_sample(whole):
    """States that one sample was processed."""
    return changing_metrics(whole, lambda metrics: {"count": jnp.float32(1)})


def trained_twice(whole):
    """Trains on from what it trained, and reports the first time alone."""

    def update(key, ctx, downlink, client, batches):
        up, _, metrics = whole.update(key, ctx, downlink, client, batches)
        old, first = downlink["params"].values, up["delta"].values
        between = {"params": Packet(jax.tree.map(jnp.add, old, first))}
        up, client, _ = whole.update(key, ctx, up | between, client, batches)
        delta = jax.tree.map(jnp.add, first, up["delta"].values)
        return up | {"delta": Packet(delta)}, client, metrics

    return whole._replace(update=update)


def claimed_density(whole):
    """Is charged at the density of a personal model that has another."""

    def personalize(key, server, client, info):
        (model,) = whole.deploy(key, server).values()
        return {"personal": model}

    def sparse(metrics):
        tenth = jax.tree.map(lambda v: 0.1 * v, metrics["work"])
        return {"work": tenth, "density": jnp.float32(0.1)}

    return changing_metrics(whole, sparse)._replace(personalize=personalize)


BROKEN = {
    "types": types,
    "start": impure_start,
    "start ": handed_twice,
    "chunks jit seeds": impure_update,
    "wire": unsent,
    "wire ": unsent_mask,
    "known": free_of_charge,
    "known ": free_labels,
    "known  ": free_mask,
    "known   ": free_top_k,
    "known    ": free_magnitudes,
    "fresh": charged_again,
    "fresh ": charged_back,
    "fresh  ": turned_back,
    "padding": reads_padding,
    "zeros fresh": leaky_packet,
    "bytes": wide_codes,
    "work": no_work,
    "work ": one_sample,
    "work  ": trained_twice,
    "work   ": claimed_density,
}
