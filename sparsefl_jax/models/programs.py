"""How accelerators run the rounds of a network: the convolutions' form, and the chunk.

Under vmap over clients a convolution becomes a grouped one, or with the form `patches`
a batched product; one client after another it stays as it is, but fills the device
less. Only whole programs show which is faster. `programs.json` has the milliseconds of
rounds, which `benchmarks.programs` writes: by an accelerator's clock, or by the
estimate of its compiler. CPUs run one client at a time, with the forms of
`lowerings.json`.
"""

import functools
import json
import math
from importlib import resources

FORMS = ("plain", "canonical", "patches")  # of all layers, under vmap over clients
IN_TURN = "in turn"  # one client after another, in the form `plain`


@functools.cache
def table(name: str = "programs") -> dict:
    """Reads `programs.json`, a dict from a platform to {by, rounds}, or another file.

    `by` is 'clock' or 'estimate'. `rounds` maps a set-up to its network's `parameters`,
    the multiply-adds of a step, `macs`, and `ms` by program: `FORMS` and `IN_TURN`;
    beside these, what they were found with.
    """
    file = resources.files("sparsefl_jax.models").joinpath(f"{name}.json")
    return json.loads(file.read_text())


@functools.cache
def form(platform: str) -> str:
    """Returns the form of all convolutions that is fastest under vmap, over set-ups.

    Example:
      >>> form("tpu")
      'plain'
    """
    each = [one["ms"] for one in _rounds(platform).values()]
    each = [ms for ms in each if set(FORMS) <= ms.keys()]
    return min(FORMS, key=lambda name: math.prod(ms[name] for ms in each))


def lowering(platform: str, chunk: int) -> str:
    """Returns the form of a round's convolutions that was timed with its chunk.

    It is 'auto', which `convolution.choose` knows, but where an accelerator runs one
    client after another.

    Example:
      >>> lowering("gpu", 1), lowering("gpu", 10)
      ('plain', 'auto')
    """
    return "plain" if chunk == 1 and platform != "cpu" else "auto"


def in_turn(platform: str, parameters: int, macs: float) -> bool:
    """Returns whether clients run faster one after another than under vmap.

    On CPUs they do. Elsewhere the table's network decides that is nearest in parameters
    and multiply-adds, by its times in the forms that run; where there is none, they run
    under vmap.

    Args:
      platform: 'cpu', 'gpu' or 'tpu'.
      parameters: of the network.
      macs: multiply-adds of a step, which is a minibatch of one client.
    """
    if platform == "cpu":
        return True

    def distance(one):
        pairs = (one["parameters"], parameters), (one["macs"], macs)
        return sum(abs(math.log(a / max(b, 1))) for a, b in pairs)

    near = min(_rounds(platform).values(), key=distance, default=None)
    if near is None:
        return False
    ms = near["ms"]
    return ms[IN_TURN] < ms.get(form(platform), ms["plain"])


def _rounds(platform: str) -> dict:
    return table().get(platform, {}).get("rounds", {})
