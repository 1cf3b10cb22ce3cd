"""Checks every algorithm against the laws, and against what it alone must keep."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import optax
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.algorithms.sparse_computing import UPLINKS
from sparsefl_jax.testing import laws, small_world
from sparsefl_jax.training import local
from tests.reference.averaging_by_hand import (
    MU,
    adam_by_hand,
    fedavg_by_hand,
    is_pulled,
    keeps_velocity,
)
from tests.reference.by_hand import close
from tests.reference.complement_by_hand import DENSITY as KEPT
from tests.reference.complement_by_hand import complements
from tests.reference.fedmef_by_hand import MEF, extrudes
from tests.reference.fedpm_by_hand import trains_scores
from tests.reference.fedsparsify_by_hand import (
    DENSITY,
    ROUNDS,
    purges_on_clients,
    purges_on_server,
)
from tests.reference.fiarse_by_hand import holds_the_largest
from tests.reference.flasc_by_hand import FLASC, GRADUAL, sends_the_largest
from tests.reference.flash_by_hand import TIERS, frozen, frozen_and_dense, votes
from tests.reference.one_bit_by_hand import BAT, MRN, learns_masks, learns_signs
from tests.reference.pqsu_by_hand import uploads_what_helps
from tests.reference.prunefl_by_hand import FEDERATED, SEARCH, searches
from tests.reference.regrowth_by_hand import (
    FEDDST,
    FEDRTS,
    FEDSPA,
    TINY,
    adds_changes,
    readjusts,
    scores_of_all,
    votes_by_hand,
)
from tests.reference.snip_by_hand import flows, sensitive, votes_for
from tests.reference.sparsyfed_by_hand import DENSITY as LARGEST
from tests.reference.sparsyfed_by_hand import trains_powers
from tests.reference.width_by_hand import GRID, drops_widths
from tests.reference.work_by_hand import ELSEWHERE, WORK, multiplies
from tests.reference.zerofl_by_hand import SPARSE, computes_sparsely


def obeys(world):
    """Checks the laws alone; a method's own test has a round by hand."""


class Row(NamedTuple):
    """A method, and `check(world)` of what it alone must equal or keep."""

    factory: Callable
    kwargs: dict
    check: Callable = obeys
    optimizer: Callable | None = None  # None: that of the small world


def plain_mean(world):
    """Checks that `rank_tiers` is FedAvg with equal weights where no adapters are."""
    means = {"weighting": "uniform", "server_optimizer": optax.sgd(1.0)}
    other = small_world.make_world(sfl.fedavg, means)
    for covered in (world, small_world.make_world(sfl.rank_tiers, COVERED)):
        got, want = (small_world.path(w)[0][-1].server for w in (covered, other))
        close(got, want)


def adjusts(world):
    """Checks FedDST's rounds, and that it is FedAvg where nothing is pruned."""
    readjusts(world)
    dense = {"density": 1.0, "prune_rate": 0.0, "adjust_until": 2}
    fedavg_by_hand(small_world.make_world(sfl.feddst, dense))


def draws(world):
    """Checks FedRTS's rounds, and that it is FedAvg where nothing is pruned."""
    votes_by_hand(world)
    fedavg_by_hand(small_world.make_world(sfl.fedrts, {"density": 1.0}))


COVERED = {"coverage": True, "server_optimizer": optax.sgd(1.0)}
HALF = {"density": 0.5}
BOTH = {"up": "stc", "down": "stc", "density": 0.2}
TENTH = {"density": 0.1}
EF21 = TENTH | {"feedback": "ef21", "clients": 5}
VOTES = {"feedback": "none", "server_optimizer": optax.sgd(0.01)}
FROZEN = {"select": "cyclic", "fill": "freeze", "keep_optimizer": True}
SCHEDULE = {"density": DENSITY, "rounds": ROUNDS}

TABLE = {
    "fedavg": Row(sfl.fedavg, {}, fedavg_by_hand),
    "fedadam": Row(sfl.fedavg, {"server_optimizer": optax.adam(0.01)}, adam_by_hand),
    "fedavg_keep": Row(sfl.fedavg, {"keep_optimizer": True}, keeps_velocity),
    "fedluar": Row(sfl.fedluar, {}),
    "fedluar_freeze": Row(sfl.fedluar, FROZEN),
    "fedmrn": Row(sfl.fedmrn, MRN, learns_masks),
    "fedmrn_signed": Row(
        sfl.fedmrn,
        MRN | {"mask": "signed", "noise": "gaussian", "index": "entropy"},
        functools.partial(learns_masks, lowest=-1.0),
    ),
    "fedbat": Row(sfl.fedbat, BAT, learns_signs),
    "fedpm": Row(sfl.fedpm, {}, trains_scores),
    "fedpm_initial": Row(sfl.fedpm, {"weights": "initial"}),
    "ditto": Row(sfl.ditto, {"lam": 0.5}, fedavg_by_hand),
    "fedprox": Row(sfl.fedprox, {"mu": MU}, is_pulled),
    "complement": Row(sfl.complement, {"density": KEPT}, complements),
    "compressed": Row(sfl.compressed, TENTH | {"index": "golomb"}),
    "compressed_stc": Row(sfl.compressed, BOTH),
    "compressed_sign": Row(sfl.compressed, {"up": "sign", "down": "sign"}),
    "compressed_ef21": Row(sfl.compressed, EF21),
    "compressed_ef21_gradient": Row(sfl.compressed, EF21 | {"start": "gradient"}),
    "compressed_randomk": Row(sfl.compressed, TENTH | {"up": "randomk"}),
    "compressed_qsgd": Row(sfl.compressed, {"up": "qsgd", "feedback": "none"}),
    "compressed_qsgd_bucket": Row(sfl.compressed, {"up": "qsgd", "bucket": 50}),
    "compressed_majority": Row(
        sfl.compressed, VOTES | {"up": "majority", "down": "sign"}
    ),
    "quantized": Row(sfl.quantized, {}),
    "quantized_half": Row(sfl.quantized, {"bits": 16}),
    "fedsparsify_global": Row(sfl.fedsparsify_global, SCHEDULE, purges_on_server),
    "fedsparsify_adam": Row(
        sfl.fedsparsify_global, SCHEDULE | {"server_optimizer": optax.adam(0.01)}
    ),
    "fedsparsify_local": Row(sfl.fedsparsify_local, SCHEDULE, purges_on_clients),
    "pdst": Row(sfl.pdst, HALF, frozen_and_dense),
    "spdst": Row(sfl.spdst, {}, frozen),
    "spdst_keep": Row(sfl.spdst, {"keep_optimizer": True}, keeps_velocity),
    "jmwst": Row(sfl.jmwst, HALF, functools.partial(votes, every=1)),
    "jmwst_2": Row(sfl.jmwst, HALF | {"r_int": 2}, functools.partial(votes, every=2)),
    "nst": Row(sfl.nst, HALF),
    "sensitivity": Row(sfl.sensitivity, HALF),
    "snip": Row(sfl.snip, HALF, functools.partial(votes_for, scores=sensitive)),
    "grasp": Row(sfl.grasp, HALF, functools.partial(votes_for, scores=flows)),
    "hetero_spdst": Row(sfl.hetero_spdst, TIERS),
    "hetero_jmwst": Row(sfl.hetero_jmwst, TIERS),
    "ssfl": Row(sfl.ssfl, HALF, scores_of_all),
    "ssfl_seed": Row(sfl.ssfl, HALF | {"initial": "seed"}),
    "magnitude": Row(sfl.magnitude, {"density": 0.3}, frozen),
    "magnitude_layer": Row(
        sfl.magnitude, HALF | {"scope": "layer", "keep_optimizer": True}
    ),
    "finetune": Row(sfl.finetune, {"scale": 0.5}),
    "feddst": Row(sfl.feddst, FEDDST, adjusts),
    "fedspa": Row(sfl.fedspa, HALF, adds_changes),
    "fedspa_own": Row(
        sfl.fedspa,
        HALF | {"shared": False},
        functools.partial(adds_changes, shared=False),
    ),
    "fedspa_dst": Row(
        sfl.fedspa, FEDSPA, functools.partial(adds_changes, dynamic=True)
    ),
    "fedrts": Row(sfl.fedrts, FEDRTS, draws),
    "fedtiny": Row(sfl.fedtiny, TINY, votes_by_hand),
    "fedmef": Row(sfl.fedmef, MEF, extrudes),
    "fedmef_aggregate": Row(sfl.fedmef, TINY | {"prune_by": "aggregate"}),
    "prunefl": Row(sfl.prunefl, FEDERATED, fedavg_by_hand),
    "prunefl_initial": Row(sfl.prunefl_initial, SEARCH, searches),
    "scaffold": Row(sfl.scaffold, {"clients": 5}, optimizer=local.make_optimizer()),
    "spafl": Row(sfl.spafl, {"alpha": 0.05}),
    "spafl_seed": Row(sfl.spafl, {"initial": "seed"}),
    "local_only": Row(sfl.local_only, {"alpha": 0.05}),
    "local_sent": Row(sfl.local_only, {"initial": "sent"}),
    "heterofl": Row(sfl.heterofl, {}),
    "fedrolex": Row(sfl.fedrolex, {"scaler": False, "mask_classes": False}),
    "fedrolex_masked": Row(sfl.fedrolex, {}),
    "fiarse": Row(sfl.fiarse, {}, holds_the_largest),
    "fiarse_masked": Row(
        sfl.fiarse,
        {"gradient": "masked"},
        functools.partial(holds_the_largest, biased=False),
    ),
    "fjord": Row(sfl.fjord, GRID, drops_widths),
    "fjord_round": Row(sfl.fjord, GRID | {"draw": "round"}, drops_widths),
    "fjord_distill": Row(sfl.fjord, GRID | {"distill": True}, drops_widths),
    "flasc": Row(sfl.flasc, FLASC, sends_the_largest),
    "flasc_masked": Row(
        sfl.flasc,
        GRADUAL,
        functools.partial(
            sends_the_largest, down=(212, 106, 53, 26, 13), masked=True, decay=0.5
        ),
    ),
    "rank_tiers": Row(sfl.rank_tiers, {"server_optimizer": optax.sgd(1.0)}, plain_mean),
    "pqsu": Row(sfl.pqsu, HALF, uploads_what_helps),
    "sparsyfed": Row(sfl.sparsyfed, {"density": LARGEST}, trains_powers),
    **{
        f"zerofl_{uplink}": Row(
            sfl.zerofl,
            SPARSE | {"uplink": uplink},
            functools.partial(computes_sparsely, uplink=uplink),
        )
        for uplink in UPLINKS
    },
}


# It is FedAvg within a mask. The others need `-m slow`: a default run is short.
QUICK = "spdst"


def broken_laws(world) -> list[str]:
    found = []
    for law in laws.LAWS.values():
        try:
            law(world)
        except laws.ContractError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == QUICK else pytest.mark.slow)
        for name in TABLE
    ],
)
def test_method(name):
    row = TABLE[name]
    world = small_world.make_world(row.factory, row.kwargs, optimizer=row.optimizer)
    assert not broken_laws(world)
    row.check(world)
    if name not in ELSEWHERE:
        multiplies(world, WORK[name])
