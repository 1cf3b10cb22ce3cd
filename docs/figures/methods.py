"""What each method sends, from runs of three clients: the cases of `messages`."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import optax

import sparsefl_jax as sfl
from docs.figures import messages, recording

OPTIMIZER = sfl.training.make_optimizer(learning_rate=0.3)
PAIRS = ((0, 1), (0, 2))  # A comes back, C is new
WORDS = {"params": "model", "delta": "change", "dense": "biases"}


class Case(NamedTuple):
    """A run and the two rounds of it that are drawn.

    Attributes:
      stages: the method of each stage, with its arguments.
      first: the first of the two rounds, from 0, in the last stage; -1: the only round
        of the stage before.
      words: names of packets.
      settings: of `sfl.run`.
    """

    stages: tuple[tuple[Callable, dict], ...]
    first: int = 0
    words: dict[str, str] = {}
    settings: dict = {}


def alone(factory: Callable, first: int = 0, words=(), settings=(), **kwargs) -> Case:
    """Returns a case of one stage."""
    return Case(((factory, kwargs),), first, dict(words), dict(settings))


def after_sensitivity(factory: Callable, **kwargs) -> Case:
    """Returns a case of FLASH's second stage."""
    return Case(((sfl.sensitivity, {"density": 0.3}), (factory, kwargs)))


UNEQUAL = {"budgets": np.array([0.5, 1.0, 0.3], np.float32)}
STC = {"full": "whole model", "scale": "magnitudes", "delta": "signs"}
CASES = {
    "fedavg": alone(sfl.fedavg),
    "compressed": alone(sfl.compressed, density=0.1, words={"delta": "largest"}),
    "compressed_stc": alone(
        sfl.compressed, up="stc", down="stc", density=0.1, words=STC
    ),
    "flash_spdst": after_sensitivity(sfl.spdst),
    "flash_nst": after_sensitivity(sfl.nst, density=0.3, prune_rate=0.9),
    "spafl": alone(
        sfl.spafl, alpha=0.05, words={"params": "weights", "delta": "last change"}
    ),
    "fedluar": alone(sfl.fedluar, words={"recycled": "recycled layers"}),
    "flasc": alone(
        sfl.flasc,
        density=0.25,
        server_optimizer=optax.adam(0.2),
        words={"params": "largest", "delta": "largest"},
    ),
    "fedpm": alone(sfl.fedpm),
    "fedmrn": alone(sfl.fedmrn, words={"rest": "biases"}),
    "fedbat": alone(sfl.fedbat, words={"alpha": "step sizes", "rest": "biases"}),
    "heterofl": alone(sfl.heterofl, words={"params": "slice"}, settings=UNEQUAL),
    "fedrolex": alone(
        sfl.fedrolex, first=1, words={"params": "slice"}, settings=UNEQUAL
    ),
    "fiarse": alone(sfl.fiarse, words={"weights": "largest"}, settings=UNEQUAL),
    "complement": alone(sfl.complement, density=0.4),
    "fedsparsify": alone(sfl.fedsparsify_local, first=1, density=0.2, rounds=6),
    "snip": Case(((sfl.snip, {"density": 0.3}), (sfl.spdst, {})), first=-1),
    "scaffold": alone(sfl.scaffold, clients=3, words={"control": "variate"}),
    "finetune": Case(((sfl.fedavg, {}), (sfl.finetune, {}))),
    "magnitude": Case(((sfl.fedavg, {}), (sfl.magnitude, {"density": 0.3}))),
    "feddst": alone(sfl.feddst, first=1, density=0.4, adjust_until=8, adjust_every=2),
    "fedspa": alone(sfl.fedspa, density=0.4, mask_update="dst", adjust_until=8),
    "fedrts": alone(
        sfl.fedrts, first=2, density=0.4, adjust_every=2, adjust_until=8, gamma=0.3
    ),
    "fedmef": alone(
        sfl.fedmef,
        first=2,
        density=0.4,
        adjust_every=2,
        adjust_until=8,
    ),
    "prunefl": alone(
        sfl.prunefl,
        first=1,
        words={"squared_gradients": "gradients²"},
        reconfigure_every=1,
        prune_rate=0.6,
        constant_time=1e6,
        max_density=0.5,
    ),
    "pqsu": Case(
        ((sfl.fedavg, {}), (sfl.pqsu, {"density": 0.5})),
        words={"grid": "scales, zeros"},
    ),
    "zerofl": alone(sfl.zerofl, density=0.3, mask_ratio=0.2),
    "sparsyfed": alone(sfl.sparsyfed, density=0.3),
}


def draw(case: Case, path: Path) -> None:
    """Runs a case and draws two rounds of it; every stage before has one round."""
    model, end = recording.tiny_model(), len(case.stages) - 1
    lengths = [1] * end + [case.first + 2]
    cohorts = [((0,),)] * end + [PAIRS]
    stages = [
        sfl.Stage(factory(model, OPTIMIZER, **kwargs), length, 1, batch_size=8)
        for (factory, kwargs), length in zip(case.stages, lengths, strict=True)
    ]
    exchanges = recording.record(stages, cohorts, **case.settings)
    places = [(end, case.first), (end, case.first + 1)]
    if case.first < 0:
        places[0] = end - 1, 0
    of_stage = {stage: f"stage {stage + 1}, " if end else "" for stage, _ in places}
    titles = {(s, round): f"{of_stage[s]}round {round + 1}" for s, round in places}
    messages.draw_rounds(path, exchanges, titles, WORDS | case.words)
