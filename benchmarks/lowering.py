"""Times every lowering of every convolution, and writes the table that `auto` reads.

    python -m benchmarks lowering                    # print only
    python -m benchmarks lowering --write            # and keep it in lowerings.json
    python -m benchmarks lowering --models conv4 ic --seconds 0.2

One client runs on each CPU core, all at the same time and inside a loop, as in a run.
First, every pass is timed by itself. Then, as passes of one form share work, the
fastest mix is compared with each Winograd form in all three passes. Last, the fastest
of these processes a few images at a time, whose tiles may fit into the cache. All is in
float32. A form that does not fit or compile is left out with its reason. Accelerators
are for `programs`, because there what wins in a layer loses in a network.

Figures are effective GFLOP/s of all devices: the direct convolution's operations over
the shortest time. Layers that were not timed keep their entries. A full run takes half
an hour, mostly compilation; run nothing else at the same time.
"""

import datetime
import functools
import json
import math
import platform
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from benchmarks import workload
from sparsefl_jax import models
from sparsefl_jax.models import convolution, lowerings
from sparsefl_jax.models.forms import fast
from sparsefl_jax.system import hardware

_DENSE = "mlp", "sa", "pretrained_encoder"  # no convolution
MODELS = [name for name in workload.NETWORKS if name not in _DENSE]
# Winograd compiles slower and rounds more, so it has to win clearly.
HANDICAP = 0.9
# Parts of a batch gained up to a quarter in a single layer, but nothing in a network.
PARTS, PARTS_HANDICAP = (2, 4, 8, 16, 32), 0.8
TABLE = Path(convolution.__file__).with_name("lowerings.json")
CHOICES = {"models": MODELS}


def run(models=tuple(MODELS), seconds=0.1, write=False) -> Iterator[dict]:
    """Yields the fastest lowering of each layer.

    Args:
      models: the networks.
      seconds: of one loop.
      write: whether to keep the table.
    """
    if convolution.platform() != "cpu":
        sys.exit("error: accelerators are for `python -m benchmarks programs`")
    for name in models:
        for position, layer in enumerate(find_layers(name)):
            needed = position > 0  # the first layer's input has no gradient
            best = measure(layer, needed, seconds)
            if write:
                store(layer, best)
            yield {"layer": key_of(layer), "fastest": best}


def find_layers(name: str) -> list[convolution.Layer]:
    """Returns the convolutions of a model that have several forms, in order."""
    batch, shape, classes = workload.NETWORKS[name]
    found, choose = {}, convolution.choose

    def record(layer, *where):
        found[layer] = None
        return choose(layer, *where)

    model = models.build(name, classes, shape)
    x = jax.ShapeDtypeStruct((batch, *shape), jnp.float32)
    forward = fast(lambda *args: model.apply(*args, train=False)[0])
    with mock.patch.object(convolution, "choose", record):
        jax.eval_shape(forward, *model.shapes(), x)
    return [layer for layer in found if layer.size > 1]


def key_of(layer):
    """Returns a layer's name in the table: its numbers."""
    return " ".join(map(str, layer))


def output_of(layer):
    """Returns height and width of a layer's output."""
    sides = layer.height, layer.width
    return [(n + 2 * layer.pad - layer.size) // layer.stride + 1 for n in sides]


def operands(layer):
    """Returns the shapes of a layer's images, kernel and gradient of its outputs."""
    x = (layer.batch, layer.height, layer.width, layer.inputs)
    w = (layer.size, layer.size, layer.inputs, layer.outputs)
    return x, w, (layer.batch, *output_of(layer), layer.outputs)


def one_pass(name, lowering, layer):
    """Returns the function of one pass, of all three operands."""
    where = layer.stride, layer.pad
    if name == "forward":
        return lambda x, w, g: lowerings.forward(lowering, x, w, *where)
    if name == "input_grad":
        return lambda x, w, g: lowerings.input_grad(lowering, x, g, w, *where)
    return lambda x, w, g: lowerings.weight_grad(lowering, x, g, w, *where)


def all_passes(lowering, layer, needs_input_grad):
    """Returns the function of all passes, of all three operands."""

    def run(x, w, g):
        conv = lambda x, w: lowerings.plain(x, w, layer.stride, layer.pad)  # noqa: E731
        y, transpose = jax.vjp(conv, x, w)
        dx, dw = transpose(g)
        return (y, dx, dw) if needs_input_grad else (y, dw)

    return fast(run, lowering)


def seconds_per_step(run, shapes, budget):
    """Returns the shortest time of a step of `run` over loops of `budget` seconds."""
    devices = np.array(jax.devices())
    spec = PartitionSpec("clients")

    def step(_, operands):
        # Every operand depends on the whole result, so XLA can hoist or drop nothing.
        trace = 1e-9 * sum(v.mean() for v in jax.tree.leaves(run(*operands)))
        return tuple(v + trace for v in operands)

    def loop(length, *operands):
        out = lax.fori_loop(0, length, step, tuple(v[0] for v in operands))
        return tuple(v[None] for v in out)

    mesh, rest = Mesh(devices, ("clients",)), (spec,) * len(shapes)
    specs = {"in_specs": (PartitionSpec(), *rest), "out_specs": rest}
    program = jax.jit(jax.shard_map(loop, mesh=mesh, check_vma=False, **specs))
    rng = np.random.default_rng(0)
    operands = [jnp.float32(rng.normal(0, 0.1, (devices.size, *s))) for s in shapes]

    def timed(length):
        start = time.perf_counter()
        jax.block_until_ready(program(jnp.int32(length), *operands))
        return (time.perf_counter() - start) / length

    timed(1)
    length = max(1, int(budget / timed(1)))
    return min(timed(length) for _ in range(3))


def measure(layer, needs_input_grad, budget):
    """Returns the fastest lowering of a layer, and prints the rates of all."""
    flops = 2 * layer.size**2 * layer.inputs * layer.outputs
    flops *= layer.batch * math.prod(output_of(layer)) * jax.device_count()
    rates = functools.partial(_rates, layer, budget)
    winograd = lowerings.WINOGRAD if layer.stride == 1 else ()
    mix = []
    for name in convolution.Lowering._fields[:3]:
        # `plain` is forward as `canonical`, and of gradients never the fastest.
        names = ("canonical", "patches", *winograd)
        if name != "forward" and layer.stride > 1:
            names = ("patches",)
        if name == "input_grad" and not needs_input_grad:
            mix.append("patches")
            continue
        programs = {n: one_pass(name, n, layer) for n in names}
        mix.append(_fastest(rates(name, programs, flops)))
    flops *= 2 + needs_input_grad
    winograd = [convolution.Lowering(n, n, n) for n in winograd]
    mixes = [convolution.Lowering(*mix), *winograd]
    programs = {m: all_passes(m, layer, needs_input_grad) for m in mixes}
    speed = rates("all", programs, flops)
    tiled = {m: speed[m] for m in winograd if m in speed}
    if tiled:
        images = [layer.batch // n for n in PARTS if layer.batch % n == 0]
        parts = [_fastest(tiled)._replace(images=n) for n in images]
        programs = {m: all_passes(m, layer, needs_input_grad) for m in parts}
        speed |= rates("all in parts", programs, flops)
    best = _fastest(speed)
    return list(best if best.images else best[:3])


def _rates(layer, budget, title, programs, flops):
    """Returns the GFLOP/s of `programs`, functions by key, that do not fail."""
    speed = {}
    for key, run in programs.items():
        try:
            seconds = seconds_per_step(run, operands(layer), budget)
            speed[key] = flops / seconds / 1e9
        except Exception as error:  # memory, or the compiler
            reason = str(error).partition("\n")[0]
            print(f"{key_of(layer):30} {title:12} {_text(key)} failed: {reason}")
    figures = "  ".join(f"{_text(k)} {v:.0f}" for k, v in speed.items())
    print(f"{key_of(layer):30} {title:12} {figures}", flush=True)
    if not speed:
        raise SystemExit(f"{key_of(layer)}: no form of {title} has run")
    return speed


def _fastest(speed):
    """Returns the fastest form; a hardly faster one is not worth it."""

    def worth(key):
        handicap = HANDICAP if "winograd" in _text(key) else 1.0
        handicap *= PARTS_HANDICAP if getattr(key, "images", 0) else 1.0
        return handicap * speed[key]

    return max(speed, key=worth)


def _text(key) -> str:
    """Returns a form's name; for a `Lowering`, the joined names and its images."""
    if isinstance(key, str):
        return key
    names = "+".join(dict.fromkeys(key[:3]))
    return f"{names} by {key.images}" if key.images else names


def store(layer: convolution.Layer, lowering: list):
    table = json.loads(TABLE.read_text())
    entry = table.setdefault("cpu", {"layers": {}})
    entry["layers"][key_of(layer)] = lowering
    hardware_here = f"{hardware.processor()}, {platform.machine()}"
    entry["hardware"] = f"{jax.device_count()} x {hardware_here}"
    entry["date"] = datetime.date.today().isoformat()
    text = json.dumps(table, indent=1)
    # One line per layer.
    text = re.sub(r"\[[^]]*]", lambda m: json.dumps(json.loads(m[0])), text)
    TABLE.write_text(text + "\n")
