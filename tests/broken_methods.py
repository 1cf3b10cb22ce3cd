"""Ways to break a method, and the laws that each breaks, in `BROKEN`."""

import itertools
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from sparsefl_jax.sparsity import masks
from sparsefl_jax.testing import small_world
from sparsefl_jax.training import means
from sparsefl_jax.wire.packets import Packet


def types(whole):
    """Returns statistics in another dtype."""

    def aggregate(key, ctx, server, total):
        server, metrics = whole.aggregate(key, ctx, server, total)
        half = jax.tree.map(lambda v: v.astype(jnp.bfloat16), server.stats)
        return server._replace(stats=half), metrics

    return whole.replace(aggregate=aggregate)


def impure_start(whole):
    """Starts clients from random numbers that do not follow from the key."""
    rng = np.random.default_rng(0)

    def init_client(key, received, info):
        return {"noise": jnp.float32(rng.normal()) + info.budget}

    return whole.replace(init_client=init_client)


def hands_model(server, **settings):
    """Returns the weights in a packet."""
    return {"params": Packet(server.params, **settings)}


def handed_twice(whole):
    """Hands clients another model in every round, and starts them from the first."""

    def init_client(key, received, info):
        return received["params"].values

    return keeping(whole).replace(send_once=hands_model, init_client=init_client)


def handed_signs(whole):
    """Hands clients the signs of the weights as those of zeros outside a mask."""

    def send_once(server):
        zeros = jax.tree.map(lambda v: jnp.copysign(0.0, v), server.params)
        nothing = jax.tree.map(lambda v: jnp.zeros(v.shape, bool), zeros)
        return {"signs": Packet(zeros, nothing, index="none")}

    def init_client(key, received, info):
        return jax.tree.map(lambda v: jnp.copysign(1.0, v), received["signs"].values)

    return keeping(whole).replace(send_once=send_once, init_client=init_client)


def free_start(whole):
    """Hands clients the initial weights, which an earlier stage may have trained."""

    return keeping(whole).replace(send_once=partial(hands_model, bits=0))


def keeping(whole):
    """Lets clients keep a state that the method does not know."""

    def update(key, ctx, downlink, client, batches):
        nothing = whole.init_client(key, {}, ctx.client)
        uplink, _, metrics = whole.update(key, ctx, downlink, nothing, batches)
        return uplink, client, metrics

    return whole.replace(update=update)


def sending(whole, change):
    """Sends `change(delta, ctx, batches)` in the place of the delta."""

    def update(key, ctx, downlink, client, batches):
        uplink, client, metrics = whole.update(key, ctx, downlink, client, batches)
        packet = change(uplink["delta"].values, ctx, batches)
        return uplink | {"delta": packet}, client, metrics

    return whole.replace(update=update)


def unsent_whisper(whole):
    """Reads a ten-millionth of the delta from a packet that is not sent."""

    def small(delta, *_):
        return Packet(jax.tree.map(lambda v: 1e-7 * v, delta), sent=False)

    def contribute(ctx, uplink):
        heard = jax.tree.map(lambda v: jnp.where(v == 9, 0, v), uplink["delta"].values)
        return whole.contribute(ctx, uplink | {"delta": Packet(heard)})

    return sending(whole, small).replace(contribute=contribute)


def lazy_delta(whole):
    """Sends the delta where it grows, which a bit says; zeros are read elsewhere."""

    def lazy(delta, *_):
        sent = grows(delta)
        values = jax.tree.map(lambda v: jnp.where(sent, v, 0.0), delta)
        return Packet(values, sent=sent, optional=True)

    return sending(whole, lazy)


def optional_delta(whole):
    """Sends the whole delta at 0 bits wherever its first entry is positive."""

    def free(delta, *_):
        sent = jax.tree.leaves(delta)[0].reshape(-1)[0] > 0
        return Packet(delta, sent=sent, bits=0, optional=True)

    return sending(whole, free)


def charged_for_less(whole):
    """Returns a packet of the name under which what is handed is charged."""

    def broadcast(*args):
        return whole.broadcast(*args) | {"handed/params": Packet(jnp.zeros(0))}

    return whole.replace(send_once=hands_model, broadcast=broadcast)


def impure_update(whole):
    """Trains with another factor in every trace."""
    traces = itertools.count(1)

    def scaled(delta, *_):
        factor = jnp.float32(next(traces))
        return Packet(jax.tree.map(lambda v: v * factor, delta))

    return sending(whole, scaled)


def reads_padding(whole):
    """Lets the delta depend on all rows of x and on the number of steps."""

    def shifted(delta, ctx, batches):
        mean = jnp.mean(batches.x) / batches.num_steps.astype(jnp.float32)
        return Packet(jax.tree.map(lambda v: v + mean, delta))

    return sending(whole, shifted)


def moving_mask(tree, round):
    """Returns a mask of every other entry: the even ones in even rounds."""

    def parity(leaf):
        return jnp.arange(leaf.size).reshape(leaf.shape) % 2 == round % 2

    return jax.tree.map(parity, tree)


def leaky_packet(whole):
    """Claims that a mask holds the delta; the mask moves and is never paid for."""

    def held(delta, ctx, _):
        mask = moving_mask(delta, ctx.round)
        return Packet(delta, mask, fresh=False, index="bitmap")

    return sending(whole, held)


def carrying(whole, name, extra, read=None):
    """Sends a packet more, `extra(delta, batches, round)`.

    `read(delta, packet)` returns what the server makes of it.
    """

    def update(key, ctx, downlink, client, batches):
        uplink, *rest = whole.update(key, ctx, downlink, client, batches)
        packet = extra(uplink["delta"].values, batches, ctx.round)
        return uplink | {name: packet}, *rest

    def contribute(ctx, uplink):
        delta = uplink["delta"].values
        delta = read(delta, uplink[name]) if read else delta
        return whole.contribute(ctx, {"delta": Packet(delta), "stats": uplink["stats"]})

    return whole.replace(update=update, contribute=contribute)


def added(delta, leaf):
    """Returns the delta with something added to all of it."""
    return jax.tree.map(lambda v: v + 0.01 * leaf.astype(v.dtype), delta)


def grows(delta):
    """Returns a bit of what was trained."""
    return jnp.sum(delta["fc1"]["kernel"]) > 0


def wide_codes(whole):
    """Sends codes that do not fit the bits that are charged, but in rounds 0 and 1."""

    def codes(delta, batches, round):
        return Packet(jnp.full((3,), jnp.where(round < 2, 1, 99), jnp.int32), bits=4)

    return carrying(whole, "codes", codes)


def complex_values(whole):
    """Sends the delta as the imaginary part of numbers that are charged as floats."""

    def both(delta, *_):
        parts = jax.tree.map(lambda v: lax.complex(jnp.zeros_like(v), v), delta)
        return Packet(parts)

    def read(delta, packet):
        return jax.tree.map(lambda v, c: v + 0.01 * c.imag, delta, packet.values)

    return carrying(whole, "complex", both, read)


def signs_outside(whole):
    """Sends the signs of the delta as those of zeros outside a mask without entries."""

    def zeros(delta, *_):
        nowhere = jax.tree.map(lambda v: jnp.zeros(v.shape, bool), delta)
        return Packet(signed_zeros(delta), nowhere, index="none")

    def read(delta, packet):
        return jax.tree.map(
            lambda v, z: v + 0.01 * jnp.signbit(z), delta, packet.values
        )

    return carrying(whole, "zeros", zeros, read)


def signed_zeros(delta):
    return jax.tree.map(lambda v: jnp.copysign(jnp.zeros_like(v), v), delta)


def free_signs(whole):
    """Sends the signs of the delta as those of zeros that are common knowledge."""
    return carrying(
        whole, "zeros", lambda delta, *_: Packet(signed_zeros(delta), bits=0)
    )


def free_whisper(whole):
    """Declares the delta common knowledge once it is small enough."""

    def small(delta, *_):
        return Packet(jax.tree.map(lambda v: 1e-7 * v, delta), bits=0)

    return carrying(whole, "small", small)


def of_samples(batches):
    """Returns the samples of a client's first epoch, labels, and a weight of each."""
    rows = batches.order[0].reshape(-1)
    return batches.x[rows], batches.y[rows], batches.weight[0].reshape(-1)


def free_variance(whole):
    """Sends free of charge whether a client's samples are spread widely."""

    def wide(delta, batches, round):
        x, _, weight = of_samples(batches)
        mean = jnp.average(x, axis=0, weights=weight, keepdims=True)
        variance = jnp.average((x - mean) ** 2, axis=0, weights=weight)
        return Packet(jnp.mean(variance) > 0.9, bits=0)

    return carrying(whole, "wide", wide)


def free_purity(whole):
    """Sends free of charge how many samples of a client have its commonest label."""

    def largest(delta, batches, round):
        _, y, weight = of_samples(batches)
        counts = jnp.zeros(small_world.CLASSES).at[y].add(weight)
        return Packet(jnp.max(counts), bits=0)

    return carrying(whole, "commonest", largest)


def free_shares(whole):
    """Sends free of charge which share of each feature lies between 0 and 1."""

    def shares(delta, batches, round):
        x, _, weight = of_samples(batches)
        return Packet(jnp.average((x > 0) & (x < 1), axis=0, weights=weight), bits=0)

    return carrying(whole, "shares", shares)


def free_magnitudes(whole):
    """Broadcasts free of charge how large the weights of the initial model are."""

    def broadcast(key, ctx, server):
        sizes = Packet(jax.tree.map(jnp.abs, server.params), sent=ctx.round < 1, bits=0)
        return whole.broadcast(key, ctx, server) | {"sizes": sizes}

    return whole.replace(broadcast=broadcast)


def one_hot(whole):
    """Sends a float at 0 bits, at a position of 16 bits that no two floats share."""

    def hot(delta, *_):
        value = delta["fc1"]["kernel"][0, 0]
        bits = lax.bitcast_convert_type(value, jnp.uint32)
        place = (bits * jnp.uint32(2654435761)) >> 16
        mask = jnp.arange(2**16, dtype=jnp.uint32) == place
        return Packet(jnp.where(mask, value, 0.0), mask, bits=0, index="coo")

    return carrying(whole, "hot", hot)


def signs(delta, **settings):
    """Returns zeros on a mask that is the sign of the delta."""
    mask = jax.tree.map(lambda v: v > 0, delta)
    return Packet(jax.tree.map(jnp.zeros_like, delta), mask, bits=0, **settings)


def calls_back(whole):
    """Lets Python see the delta."""

    def heard(delta, ctx, _):
        leaf = delta["fc1"]["bias"]
        jax.debug.print("{}", leaf[0])  # is allowed
        leaf = lax.cond(
            ctx.round > 0,
            lambda v: jax.pure_callback(np.asarray, jax.typeof(v), v),
            lambda v: v,
            leaf,
        )
        return Packet(delta | {"fc1": delta["fc1"] | {"bias": leaf}})

    return sending(whole, heard)


def keeps_ref(whole):
    """Keeps the last loss of all clients in a Ref."""
    kept = jax.new_ref(jnp.float32(0))

    def update(*args):
        uplink, client, metrics = whole.update(*args)
        kept[...] = metrics["loss"]
        return uplink, client, metrics

    return whole.replace(update=update)


def one_key(whole):
    """Draws noise, and which entries get it, by one key."""

    def update(key, ctx, *args):
        uplink, *rest = whole.update(key, ctx, *args)
        own = jax.random.fold_in(key, 9)

        def noised(v):
            where = jax.random.bernoulli(own, 0.5, v.shape)
            return v + jnp.where(where, jax.random.normal(own, v.shape), 0.0)

        delta = jax.tree.map(noised, uplink["delta"].values)
        return uplink | {"delta": Packet(delta)}, *rest

    return whole.replace(update=update)


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

    return whole.replace(update=update, contribute=contribute)


def unsent_later(whole):
    """Broadcasts statistics that are read and, from round 2 on, not sent."""

    def broadcast(key, ctx, server):
        down = whole.broadcast(key, ctx, server)
        return down | {"stats": replace(down["stats"], sent=ctx.round < 2)}

    return whole.replace(broadcast=broadcast)


def unsent_mask(whole, **settings):
    """Reads the mask of a packet that is not sent."""

    def read(delta, packet):
        return jax.tree.map(lambda v, m: v + 0.01 * m, delta, packet.mask)

    unsent = {"sent": False, "index": "bitmap"} | settings
    return carrying(whole, "signs", lambda delta, *_: signs(delta, **unsent), read)


def unsent_held_mask(whole):
    """Claims that the mask of a packet that is not sent is held, and known anyway."""
    return unsent_mask(whole, fresh=False, index="none")


def unsent_pair(whole):
    """Reads of a mask that is not sent what its complement says too."""

    def pair(delta, *_):
        mask = jnp.stack([grows(delta), jnp.bool_(False)])
        return Packet(jnp.zeros(2), mask, sent=False, bits=0, index="bitmap")

    def read(delta, packet):
        return added(delta, packet.mask[0] ^ packet.mask[1])

    return carrying(whole, "pair", pair, read)


def chosen_mask(whole):
    """Says a bit of what was trained by which of two held masks it means."""
    even = jnp.arange(8) % 2 == 0
    blank = {"values": jnp.zeros(8), "bits": 0, "index": "bitmap"}

    def broadcast(key, ctx, server):
        new = ctx.last_round < 0
        pair = {"even": even, "odd": ~even}
        held = {n: Packet(mask=m, fresh=new, **blank) for n, m in pair.items()}
        return whole.broadcast(key, ctx, server) | held

    def choice(delta, *_):
        return Packet(mask=even == grows(delta), fresh=False, **blank)

    def read(delta, packet):
        return added(delta, packet.mask[0])

    return carrying(whole.replace(broadcast=broadcast), "choice", choice, read)


def flag_sent(whole):
    """Says a bit of what was trained by sending an empty packet, or none."""

    def empty(delta, *_):
        return Packet(jnp.zeros(0), sent=grows(delta))

    return carrying(whole, "empty", empty, lambda d, packet: added(d, packet.sent))


def flag_fresh(whole):
    """Says a bit of what was trained by claiming that a mask is held."""

    def held(delta, *_):
        mask = jnp.ones(1, bool)
        return Packet(jnp.zeros(1), mask, grows(delta), bits=0, index="none")

    return carrying(whole, "held", held, lambda d, packet: added(d, packet.fresh))


def flag_without_mask(whole):
    """Says a bit of what was trained by `fresh` of a packet that has no mask."""

    def empty(delta, *_):
        return Packet(jnp.zeros(0), fresh=grows(delta))

    return carrying(whole, "empty", empty, lambda d, packet: added(d, packet.fresh))


def flags_by_one_bit(whole):
    """Says two bits of what was trained by both flags, and pays for one."""

    def empty(delta, *_):
        flags = {"sent": grows(delta), "fresh": ~grows(delta)}
        mask = jnp.ones(1, bool)
        return Packet(jnp.zeros(1), mask, **flags, index="none", optional=True)

    return carrying(whole, "empty", empty, lambda d, packet: added(d, packet.sent))


def late(broken):
    """Returns the way to break a method, which breaks it from round 2 on."""

    def breaks(whole):
        other = broken(whole)

        def update(key, ctx, *args):
            pair = (method.update(key, ctx, *args) for method in (other, whole))
            return jax.tree.map(lambda a, b: jnp.where(ctx.round < 2, b, a), *pair)

        return whole.replace(update=update)

    breaks.__name__ = f"late_{broken.__name__}"
    return breaks


def free_mask(whole):
    """Sends what was trained in a mask that is free."""
    return carrying(whole, "signs", lambda delta, *_: signs(delta, index="none"))


def kept_mask(whole):
    """Sends in a free mask what the downlink of an earlier round said."""

    def init_client(key, received, info):
        return jnp.zeros(small_world.HIDDEN, bool)

    def update(key, ctx, downlink, client, batches):
        nothing = whole.init_client(key, {}, ctx.client)
        uplink, _, metrics = whole.update(key, ctx, downlink, nothing, batches)
        packet = Packet(jnp.zeros(client.shape), client, bits=0, index="none")
        heard = downlink["params"].values["fc1"]["bias"] > 0
        return uplink | {"kept": packet}, heard, metrics

    return whole.replace(init_client=init_client, update=update)


def turned_back(whole):
    """Alternates between two masks, and charges each only once."""

    def alternating(delta, ctx, _):
        mask = moving_mask(delta, ctx.round)
        values, first = masks.apply(delta, mask), ctx.round < 2
        return Packet(values, mask, fresh=first, index="bitmap")

    return sending(whole, alternating)


def charged_again(whole, spared=2):
    """Charges a mask that never changes in every round but one."""

    def broadcast(key, ctx, server):
        down = whole.broadcast(key, ctx, server)
        packet = down["params"]
        mask = moving_mask(packet.values, 0)
        values, fresh = masks.apply(packet.values, mask), ctx.round != spared
        fixed = Packet(values, mask, fresh, index="bitmap")
        return down | {"params": fixed}

    return whole.replace(broadcast=broadcast)


def charged_always(whole):
    """Charges the same mask in all rounds, which is a way to write positions."""
    return charged_again(whole, spared=-1)


def charged_back(whole):
    """Charges a client for returning the mask that it received, but in round 2."""
    down = charged_again(whole)

    def broadcast(key, ctx, server):
        message = down.broadcast(key, ctx, server)
        first = ctx.last_round < 0
        return message | {"params": replace(message["params"], fresh=first)}

    def update(key, ctx, downlink, client, batches):
        uplink, client, metrics = whole.update(key, ctx, downlink, client, batches)
        mask = downlink["params"].mask
        delta = masks.apply(uplink["delta"].values, mask)
        delta = Packet(delta, mask, ctx.round != 2, index="coo")
        return {"params": delta, "stats": uplink["stats"]}, client, metrics

    def contribute(ctx, uplink):
        delta = Packet(uplink["params"].values)
        return whole.contribute(ctx, {"delta": delta, "stats": uplink["stats"]})

    return whole.replace(broadcast=broadcast, update=update, contribute=contribute)


def changing_metrics(whole, change):
    """Reports what `change(metrics)` returns beside what was reported."""

    def update(*args):
        uplink, client, metrics = whole.update(*args)
        return uplink, client, metrics | change(metrics)

    return whole.replace(update=update)


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

    return whole.replace(update=update)


def claimed_density(whole):
    """Is charged at the density of a personal model that has another."""

    def personalize(key, server, client, info):
        (model,) = whole.deploy(key, server).values()
        return {"personal": model}

    def sparse(metrics):
        tenth = jax.tree.map(lambda v: 0.1 * v, metrics["work"])
        return {"work": tenth, "density": jnp.float32(0.1)}

    return changing_metrics(whole, sparse).replace(personalize=personalize)


def momentum_alone(whole):
    """Moves by the server's momentum also when nobody was heard."""
    tx = optax.sgd(1.0, momentum=0.9)

    def init(key, start):
        return whole.init(key, start)._replace(opt_state=tx.init(start.params))

    def aggregate(key, ctx, server, total):
        mean = means.weighted_mean(total, means.zeros(total) | {"stats": server.stats})
        gradient = jax.tree.map(jnp.negative, mean["delta"])
        step, state = tx.update(gradient, server.opt_state)
        params = optax.apply_updates(server.params, step)
        return server._replace(params=params, stats=mean["stats"], opt_state=state), {}

    return whole.replace(init=init, aggregate=aggregate)


def momentum_begun_anew(whole):
    """Forgets the server's momentum when nobody was heard."""
    broken = momentum_alone(whole)

    def aggregate(key, ctx, server, total):
        new, metrics = broken.aggregate(key, ctx, server, total)
        still = server._replace(opt_state=optax.tree.zeros_like(server.opt_state))
        return means.if_heard(ctx, new, still), metrics

    return broken.replace(aggregate=aggregate)


def forgotten_statistics(whole):
    """Takes 0 for the mean of statistics that nobody sent."""

    def aggregate(key, ctx, server, total):
        new, metrics = whole.aggregate(key, ctx, server, total)
        stats = means.weighted_mean(total, means.zeros(total))["stats"]
        return new._replace(stats=stats), metrics

    return whole.replace(aggregate=aggregate)


BROKEN = {
    calls_back: "pure",
    keeps_ref: "pure",
    remembered: "pure",
    one_key: "keys",
    types: "types",
    impure_start: "start",
    handed_twice: "start",
    handed_signs: "start",
    free_start: "known",
    unsent_whisper: "wire",
    optional_delta: "known",
    charged_for_less: "signature",
    late(impure_update): "jit",
    late(impure_update): "chunks seeds",
    unsent_later: "wire",
    unsent_mask: "wire",
    unsent_held_mask: "wire",
    unsent_pair: "wire",
    chosen_mask: "wire",
    flag_without_mask: "wire",
    wide_codes: "wire",
    complex_values: "wire",
    signs_outside: "wire",
    free_whisper: "known",
    free_signs: "known",
    free_variance: "known",
    free_purity: "known",
    free_shares: "known",
    free_magnitudes: "known",
    one_hot: "known",
    flag_sent: "known",
    flag_fresh: "known",
    flags_by_one_bit: "known",
    free_mask: "known",
    kept_mask: "known",
    charged_again: "fresh",
    charged_back: "fresh",
    turned_back: "fresh",
    late(reads_padding): "padding",
    leaky_packet: "zeros fresh",
    momentum_alone: "late",
    momentum_begun_anew: "late",
    forgotten_statistics: "late",
    no_work: "work",
    one_sample: "work",
    trained_twice: "work",
    claimed_density: "work",
}
