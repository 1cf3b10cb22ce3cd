"""FedAvg whose messages are compressed: what compression alone gives.

Clients train the whole network; their updates travel as a compressor of
`wire.compressors` writes them, and on request the server's steps too. Feedback keeps
what was not sent:

    ef    the residual is added to the next update: Seide et al., Interspeech 2014;
          Karimireddy et al., ICML 2019, https://arxiv.org/abs/1901.09847
    ef21  the change of an estimate travels, which both ends keep: Richtarik et al.,
          NeurIPS 2021, https://arxiv.org/abs/2106.05203

Both ways: Sattler et al., "Robust and Communication-Efficient Federated Learning from
Non-IID Data", TNNLS 2019, https://arxiv.org/abs/1903.02891 (STC). Feedback also keeps
the rounding of 'topk' with few bits: Sarfi et al., "SparseLoCo", 2025,
https://arxiv.org/abs/2508.15706.

In `quantized`, the dense control of a comparison at equal bits, every entry travels,
both ways, with 16 or fewer bits. Rounding up or down at random keeps the mean of an
update, as in QSGD (Alistarh et al., NeurIPS 2017, https://arxiv.org/abs/1610.02132),
with the largest entry of a leaf for its norm.
"""

from dataclasses import replace
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from sparsefl_jax.algorithms.fedavg import fedavg, keep_model, server_step
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.check import UserError, check
from sparsefl_jax.core.types import Array, Count, EmptyState, PyTree, Share
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import masks
from sparsefl_jax.training import means
from sparsefl_jax.wire import compressors
from sparsefl_jax.wire.compressors import COMPRESSORS, Compressor, Feedback, Rounding
from sparsefl_jax.wire.packets import Message, Packet, settle_flags

DOWN = ("topk", "stc", "sign")  # decoded exactly, so both ends get the same model
HELD = "the client adds the steps that travel to the model that it holds"

FEEDBACK = {  # (delta, memory) -> pending, and (memory, pending, sent) -> memory
    "ef": (optax.tree.add, lambda _, pending, sent: optax.tree.sub(pending, sent)),
    "ef21": (optax.tree.sub, lambda memory, _, sent: optax.tree.add(memory, sent)),
    "none": (lambda delta, memory: delta, lambda memory, *_: memory),
}


class Client(NamedTuple):
    """What a client keeps: the residual of 'ef', or the estimate of 'ef21'."""

    memory: PyTree  # float32 like the parameters; EmptyState without feedback
    opt_state: PyTree  # EmptyState if it starts anew in every round


class Step(NamedTuple):
    """The server's compressed step, and what has been left out of its steps so far."""

    residual: PyTree  # float32 like the parameters
    message: Message  # the last step as it travels
    changed: PyTree  # int32 like the parameters: first round that broadcasts the value


class Server(NamedTuple):
    """The global model, the server optimizer's state, and what compression needs."""

    params: PyTree  # float32
    stats: PyTree  # float32
    opt_state: PyTree
    seed: Array  # shape=(), uint32: the positions of this round, if they are shared
    estimate: PyTree  # 'ef21': the mean of all clients' estimates; else EmptyState
    step: PyTree  # a `Step` if the downlink is compressed; else EmptyState


@method
def compressed(
    model: Model,
    optimizer: Optimizer,
    *,
    up: str | Compressor = "topk",
    down: str | Compressor | None = None,
    feedback: Feedback | None = None,
    density: Share | None = None,
    scope: str | None = None,
    bits: int | None = None,
    rounding: Rounding | None = None,
    bucket: int | None = None,
    index: str | None = None,
    clients: Count | None = None,
    start: Literal["zero", "gradient"] = "zero",
    stale: Literal["keep", "reset"] = "keep",
    server_optimizer: optax.GradientTransformation | None = None,
    keep_optimizer: bool = False,
    weighting: means.Weighting | None = None,
) -> Algorithm:
    """FedAvg with compressed messages, and memory of what they leave out.

    Down: the model, float32; with `down` the last step, compressed, to clients that
    took part in the round before, to others every entry that has changed since, or
    everything. Up: the update, compressed. Both: normalisation statistics, float32.
    Training is dense, so compression saves no FLOPs. A client whose uplink was lost
    keeps the memory that it had, as the server has not seen the new one.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it.
      up: compressor of the clients' updates: 'topk', 'randomk' (all clients of a round
        at the same positions; with feedback='none' times n / k, so that the mean is the
        update), 'qsgd', 'sign', 'majority', 'stc', 'none', or a
        `wire.compressors.Compressor`, which is used as it is.
      down: compressor of the server's steps, which keeps its residual: 'topk', 'stc',
        'sign', or a `Compressor`; None sends the model.
      feedback: 'ef', 'ef21' or 'none'; None: the compressor's own, which is 'none' for
        'qsgd' and 'majority', otherwise 'ef'. The residual of 'qsgd' grows without
        bound unless a norm is of fewer entries than its levels squared: 49 with 4 bits,
        16129 with 8.
      density: share of the entries that 'topk', 'randomk' and 'stc' send, both ways;
        None means 0.01.
      scope: entries among which 'topk' seeks the largest, 'global' or each 'leaf'; None
        for 'global'.
      bits: of a value of 'topk', 32 or 2 to 8, and of a level of 'qsgd', 2 to 8; None
        means 32 and 4.
      rounding: of 'topk' with fewer than 32 bits: 'nearest' or 'unbiased', which can
        send more than an entry and so lets the residual grow; None for 'nearest'.
      bucket: number of entries that share a norm of 'qsgd'; None: those of a leaf.
      index: how 'topk' and 'stc' write positions, see `packets.Packet`; None means
        'packed'.
      clients: number of all clients, which 'ef21' needs.
      start: estimates of 'ef21' start at 'zero', or at the first 'gradient': a client's
        first update, which then travels whole; at zero again if it is lost.
      stale: 'keep', or 'reset' if a client that missed a round forgets its residual.
      server_optimizer: an optax optimizer that takes the negated mean for a gradient;
        None adds the mean. 'majority' needs one, whose rate is the size of a step.
      keep_optimizer: clients keep their optimizer's state between rounds.
      weighting: a client's weight in the mean, see `means.WEIGHTINGS`; None for
        'examples', but 'uniform' with 'majority', where a client has one vote, and
        with 'ef21', which has no other.

    Raises:
      ValueError: an argument is out of range, or has no effect with the others.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = compressed(model, optimizer, up="stc", down="stc", density=0.01)
    """
    given = dict(density=density, scope=scope, bits=bits, rounding=rounding)
    given |= dict(bucket=bucket, index=index)
    _refuse_unread(up, down, given)
    coder = _compressor("up", up, given | {"unbiased": feedback == "none"}, COMPRESSORS)
    step_coder = None if down is None else _compressor("down", down, given, DOWN)
    feedback = feedback or coder.feedback
    estimates = feedback == "ef21"
    check("feedback", feedback, ("none",) if coder.votes else FEEDBACK)  # or a coder's
    check("stale", stale, ("keep", "reset") if feedback == "ef" else ("keep",))
    check("start", start, ("zero", "gradient") if estimates else ("zero",))
    check("clients", clients, Count if estimates else (None,))
    if estimates:
        check("weighting", weighting, (None, "uniform"))
    if coder.votes and server_optimizer is None:
        raise UserError("server_optimizer=None, expected one with up='majority'")
    pending_of, remember = FEEDBACK[feedback]
    equal = estimates or coder.votes
    weighting = weighting or ("uniform" if equal else "examples")
    server_tx = server_optimizer or optax.sgd(1.0)
    kept = {"server_optimizer": server_tx, "keep_optimizer": keep_optimizer}
    averaging = fedavg(model, optimizer, weighting=weighting, **kept)

    def init(key, start):
        zeros = optax.tree.zeros_like(start.params)
        estimate = zeros if estimates else EmptyState()
        step = EmptyState()
        if step_coder is not None:  # static branch
            changed = optax.tree.zeros_like(zeros, dtype=jnp.int32)
            message = step_coder.encode(jax.random.clone(key), zeros)  # never travels
            step = Step(zeros, settle_flags(message), changed)
        begun, seed = averaging.init(key, start), jax.random.bits(key, (), jnp.uint32)
        return Server(*begun, seed=seed, estimate=estimate, step=step)

    def init_client(key, received, info):
        params, _ = model.shapes()
        memory = EmptyState() if feedback == "none" else optax.tree.zeros_like(params)
        return Client(memory, averaging.init_client(key, received, info))

    def broadcast(key, ctx, server):
        message = averaging.broadcast(key, ctx, server)
        if step_coder is not None:  # static branch
            message |= _catch_up(ctx, server)
        return message | ({"seed": Packet(server.seed)} if coder.shared else {})

    def update(key, ctx, downlink, client, batches):
        train_key, code_key = jax.random.split(key)
        if coder.shared:  # static branch
            code_key = jax.random.key(downlink["seed"].values)
        memory, opt_state = client
        if stale == "reset":  # static branch
            missed = ctx.last_round < ctx.round - 1
            memory = jax.tree.map(lambda e: jnp.where(missed, 0.0, e), memory)
        trained = averaging.update(train_key, ctx, downlink, opt_state, batches)
        uplink, opt_state, metrics = trained
        pending = pending_of(uplink["delta"].values, memory)
        message = coder.encode(code_key, pending)
        if start == "gradient":  # static branch
            message = _send_whole(message, pending, ctx.last_round < 0)
        client = Client(remember(memory, pending, _read(coder, message)), opt_state)
        return message | {"stats": uplink["stats"]}, client, metrics

    def contribute(ctx, uplink):
        sent = {"delta": Packet(_read(coder, uplink)), "stats": uplink["stats"]}
        return averaging.contribute(ctx, sent)

    def aggregate(key, ctx, server, total):
        combine_key, seed_key, step_key = jax.random.split(key, 3)
        mean = means.weighted_mean(total, keep_model(server, total))
        delta, estimate, step = mean["delta"], server.estimate, server.step
        if estimates:  # static branch: clients that sent nothing keep theirs
            changes = total["sum"]["delta"]
            delta = jax.tree.map(lambda h, q: h + q / clients, estimate, changes)
            estimate = delta
        delta = coder.combine(combine_key, delta)
        move, opt_state = server_step(ctx, server_tx, server, delta)
        if step_coder is not None:  # static branch
            step, move = _compress(step_coder, step_key, ctx, step, move)
        params = optax.apply_updates(server.params, move)
        seed = jax.random.bits(seed_key, (), jnp.uint32)
        return Server(params, mean["stats"], opt_state, seed, estimate, step), {}

    steps = init, broadcast, update, contribute, aggregate, averaging.deploy
    return Algorithm(*steps, init_client, drop_uplink=_drop_uplink, clients=clients)


@method
def quantized(
    model: Model,
    optimizer: Optimizer,
    *,
    bits: int = 8,
    server_optimizer: optax.GradientTransformation | None = None,
    keep_optimizer: bool = False,
    weighting: means.Weighting = "examples",
) -> Algorithm:
    """FedAvg with 16 or fewer bits a value in both directions.

    Down: the model, rounded, to every client, which trains from what it decodes. Up:
    the change from there, rounded so that its mean stays. Both: 32 bits a leaf for its
    largest magnitude, unless bits=16; normalisation statistics, float32. The server's
    model is dense and float32, and so are training and evaluation.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it.
      bits: of a value: 16, a float16, or 2 to 8, of which one is the sign.
      server_optimizer: an optax optimizer that takes the negated mean for a gradient;
        None adds the mean.
      keep_optimizer: clients keep their optimizer's state between rounds.
      weighting: a client's weight in the mean, see `means.WEIGHTINGS`.

    Raises:
      ValueError: an argument is out of range.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = quantized(model, optimizer, bits=16)
    """
    if bits not in (16, *range(2, 9)):
        raise UserError(f"bits={bits!r}, expected 16 or 2 to 8")
    whole, unbiased = make_rounding(bits, False), make_rounding(bits, True)
    shared = {"keep_optimizer": keep_optimizer, "weighting": weighting}
    shared |= {"server_optimizer": server_optimizer}
    averaging = compressed(model, optimizer, up=unbiased, **shared)

    def broadcast(key, ctx, server):
        return whole.encode(key, server.params) | {"stats": Packet(server.stats)}

    def update(key, ctx, downlink, client, batches):
        received = downlink | {"params": Packet(whole.decode(downlink))}
        return averaging.update(key, ctx, received, client, batches)

    return averaging.replace(broadcast, update)


def make_rounding(bits: int, unbiased: bool) -> Compressor:
    """Returns the compressor to float16, or to multiples of a leaf's largest magnitude.

    With 2 to 8 bits the multiples are k / (2^(bits - 1) - 1) for whole k. It takes n
    bits, and 32 a leaf for the magnitude unless bits=16.

    Args:
      bits: of a value: 16, or 2 to 8.
      unbiased: whether a value between two levels goes up with the probability that
        keeps its mean, or to the nearest; a float16 is always the nearest.

    Example:
      >>> w = {'w': jnp.array([3.0, -1.4, 0.6])}
      >>> message = make_rounding(3, False).encode(None, w)
      >>> message['delta'].values['w'].tolist(), message['scale'].values['w'].item()
      ([3, -1, 1], 3.0)
    """
    levels = jnp.float32(2 ** (bits - 1) - 1)

    def one(key, leaf, scale):
        level = leaf * (levels / jnp.where(scale > 0, scale, jnp.ones_like(scale)))
        shift = jax.random.uniform(key, leaf.shape) if unbiased else 0.5
        return jnp.clip(jnp.floor(level + shift), -levels, levels).astype(jnp.int8)

    def encode(key, values):
        scale = jax.tree.map(lambda v: jnp.max(jnp.abs(v), initial=0), values)
        keys = optax.tree.split_key_like(key, values) if unbiased else scale
        level = jax.tree.map(one, keys, values, scale)
        return {"delta": Packet(level, bits=bits), "scale": Packet(scale)}

    def decode(message):
        level, scale = message["delta"].values, message["scale"].values
        return jax.tree.map(lambda q, s: q * (s / levels), level, scale)

    def encode_halves(key, values):
        return {"delta": Packet(optax.tree.cast(values, jnp.float16), bits=16)}

    def decode_halves(message):
        return optax.tree.cast(message["delta"].values, jnp.float32)

    both = (encode_halves, decode_halves) if bits == 16 else (encode, decode)
    return Compressor(*both, feedback="none")


def _send_whole(message: Message, pending: PyTree, first: Array) -> Message:
    """Returns a message that travels uncompressed instead where it is a `first` one."""
    packets = {n: replace(packet, sent=~first) for n, packet in message.items()}
    return packets | {"whole": Packet(pending, sent=first)}


def _read(coder: Compressor, message: Message) -> PyTree:
    """Returns the update that a client's message holds."""
    update, first = coder.decode(message), message.get("whole")
    if first is None:  # static branch
        return update
    return jax.tree.map(lambda v, u: jnp.where(first.sent, v, u), first.values, update)


def _drop_uplink(ctx, before: Client, after: Client) -> Client:
    """Returns a client as it was to the server, which has not seen its update."""
    return after._replace(memory=before.memory)


def _catch_up(ctx, server: Server) -> Message:
    """Returns the packets from which a client makes the present model.

    One that took part in the round before gets the last step, and one that missed
    rounds the entries that have changed since, or all. A new one gets everything.
    """
    step = server.step
    new = ctx.last_round < 0
    recent = ~new & (ctx.last_round == ctx.round - 1)
    packets = {n: replace(packet, sent=recent) for n, packet in step.message.items()}
    delta = step.message["delta"]
    everything = new if delta.mask is not None else ~recent  # all entries change
    packets["full"] = Packet(server.params, sent=everything)
    if delta.mask is not None:  # static branch
        mask = jax.tree.map(lambda c: c > ctx.last_round, step.changed)
        values, sent = masks.apply(server.params, mask), ~new & ~recent
        packets["patch"] = Packet(values, mask, sent=sent, index=delta.index)
    return packets | {"params": Packet(server.params, bits=0, assumed=HELD)}


def _compress(coder: Compressor, key, ctx, step: Step, move) -> tuple[Step, PyTree]:
    """Compresses a step of the server; returns its state and the model's change.

    If nobody was heard a step of 0 travels, and the residual stays.
    """
    pending = optax.tree.add(step.residual, move)
    moving = means.if_heard(ctx, pending, optax.tree.zeros_like(pending))
    message = settle_flags(coder.encode(key, moving))
    sent = coder.decode(message)
    changed = jax.tree.map(
        lambda c, q: jnp.where(q != 0, ctx.round + 1, c), step.changed, sent
    )
    return Step(optax.tree.sub(pending, sent), message, changed), sent


def _compressor(argument, chosen, given: dict, allowed) -> Compressor:
    """Returns the compressor that an argument names, or is."""
    if isinstance(chosen, Compressor):
        if argument == "down" and chosen.shared:
            raise UserError(f"down={chosen}, expected one without a shared key")
        return chosen
    check(argument, chosen, allowed)
    return compressors.build(chosen, given)


def _refuse_unread(up, down, given: dict) -> None:
    """Refuses an argument of a compressor that neither of the two takes."""
    names = [name for name in (up, down) if name in COMPRESSORS]
    for argument, value in given.items():
        read = any(compressors.reads(name, argument) for name in names)
        if value is not None and not read:
            raise UserError(f"{argument}={value!r}, expected None with {up=}, {down=}")
