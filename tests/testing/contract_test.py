"""Checks every algorithm against the laws, and against what it alone must keep."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import optax

import sparsefl_jax as sfl
from sparsefl_jax.algorithms.sparse_computing import UPLINKS
from sparsefl_jax.testing import laws, small_world
from sparsefl_jax.training import local
from tests.networks import mostly_slow
from tests.reference import averaging_by_hand as averaging
from tests.reference import fedsparsify_by_hand as fedsparsify
from tests.reference import regrowth_by_hand as regrowth
from tests.reference.by_hand import close
from tests.reference.complement_by_hand import DENSITY as KEPT
from tests.reference.complement_by_hand import complements
from tests.reference.fedmef_by_hand import MEF, extrudes
from tests.reference.fedpm_by_hand import trains_scores
from tests.reference.fiarse_by_hand import holds_the_largest
from tests.reference.flasc_by_hand import FLASC, GRADUAL, HALVED, sends_the_largest
from tests.reference.flash_by_hand import TIERS, frozen, frozen_and_dense, votes
from tests.reference.one_bit_by_hand import BAT, MRN, learns_masks, learns_signs
from tests.reference.pqsu_by_hand import uploads_what_helps
from tests.reference.prunefl_by_hand import FEDERATED, SEARCH, searches
from tests.reference.snip_by_hand import flows, sensitive, votes_for
from tests.reference.sparsyfed_by_hand import DENSITY as LARGEST
from tests.reference.sparsyfed_by_hand import trains_powers
from tests.reference.width_by_hand import GRID, drops_widths
from tests.reference.work_by_hand import ELSEWHERE, WORK, multiplies
from tests.reference.zerofl_by_hand import SPARSE, computes_sparsely

fedavg_by_hand, keeps_velocity = averaging.fedavg_by_hand, averaging.keeps_velocity


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
    regrowth.readjusts(world)
    dense = {"density": 1.0, "prune_rate": 0.0, "adjust_until": 2}
    fedavg_by_hand(small_world.make_world(sfl.feddst, dense))


def draws(world):
    """Checks FedRTS's rounds, and that it is FedAvg where nothing is pruned."""
    regrowth.votes_by_hand(world)
    fedavg_by_hand(small_world.make_world(sfl.fedrts, {"density": 1.0}))


COVERED = {"coverage": True, "server_optimizer": optax.sgd(1.0)}
HALF = {"density": 0.5}
BOTH = {"up": "stc", "down": "stc", "density": 0.2}
FEW = {"down": "topk", "density": 0.1, "bits": 3, "rounding": "unbiased"}
TENTH = {"density": 0.1}
EF21 = TENTH | {"feedback": "ef21", "clients": 5}
VOTES = {"up": "majority", "down": "sign", "server_optimizer": optax.sgd(0.01)}
SIGNED = MRN | {"mask": "signed", "noise": "gaussian", "index": "entropy"}
FROZEN = {"select": "cyclic", "fill": "freeze", "keep_optimizer": True}
SCHEDULE = {"density": fedsparsify.DENSITY, "rounds": fedsparsify.ROUNDS}
ADAM = {"server_optimizer": optax.adam(0.01)}
# Its iteration multiplies roundings by up to 485, so that its steps are small here.
MUON = local.make_optimizer("muon", learning_rate=1e-3)
LAYER = {"scope": "layer", "keep_optimizer": True}


def row(factory, kwargs, check=obeys, **how):
    """Returns a row whose check has these arguments."""
    return Row(factory, kwargs, partial(check, **how))


TABLE = {
    "fedavg": row(sfl.fedavg, {}, fedavg_by_hand),
    "fedadam": row(sfl.fedavg, ADAM, averaging.adam_by_hand),
    "fedavg_keep": row(sfl.fedavg, {"keep_optimizer": True}, keeps_velocity),
    "fedluar": row(sfl.fedluar, {}),
    "fedluar_freeze": row(sfl.fedluar, FROZEN),
    "fedmrn": row(sfl.fedmrn, MRN, learns_masks),
    "fedmrn_signed": row(sfl.fedmrn, SIGNED, learns_masks, lowest=-1.0),
    "fedbat": row(sfl.fedbat, BAT, learns_signs),
    "fedpm": row(sfl.fedpm, {}, trains_scores),
    "fedpm_initial": row(sfl.fedpm, {"weights": "initial"}),
    "ditto": row(sfl.ditto, {"lam": 0.5}, fedavg_by_hand),
    "fedprox": row(sfl.fedprox, {"mu": averaging.MU}, averaging.is_pulled),
    "complement": row(sfl.complement, {"density": KEPT}, complements),
    "compressed": row(sfl.compressed, TENTH | {"index": "golomb"}),
    "compressed_stc": row(sfl.compressed, BOTH),
    "compressed_bits": row(sfl.compressed, FEW),
    "compressed_sign": row(sfl.compressed, {"up": "sign", "down": "sign"}),
    "compressed_ef21": row(sfl.compressed, EF21),
    "compressed_ef21_gradient": row(sfl.compressed, EF21 | {"start": "gradient"}),
    "compressed_randomk": row(sfl.compressed, TENTH | {"up": "randomk"}),
    "compressed_qsgd": row(sfl.compressed, {"up": "qsgd", "feedback": "none"}),
    "compressed_qsgd_bucket": row(sfl.compressed, {"up": "qsgd", "bucket": 50}),
    "compressed_majority": row(sfl.compressed, VOTES),
    "quantized": row(sfl.quantized, {}),
    "quantized_half": row(sfl.quantized, {"bits": 16}),
    "fedsparsify_global": row(
        sfl.fedsparsify_global, SCHEDULE, fedsparsify.purges_on_server
    ),
    "fedsparsify_adam": row(sfl.fedsparsify_global, SCHEDULE | ADAM),
    "fedsparsify_muon": row(
        sfl.fedsparsify_global, SCHEDULE | {"server_optimizer": MUON(0)}
    ),
    "fedsparsify_local": row(
        sfl.fedsparsify_local, SCHEDULE, fedsparsify.purges_on_clients
    ),
    "pdst": row(sfl.pdst, HALF, frozen_and_dense),
    "spdst": row(sfl.spdst, {}, frozen),
    "spdst_keep": row(sfl.spdst, {"keep_optimizer": True}, keeps_velocity),
    "spdst_muon": Row(sfl.spdst, {"keep_optimizer": True}, obeys, MUON),
    "jmwst": row(sfl.jmwst, HALF, votes, every=1),
    "jmwst_2": row(sfl.jmwst, HALF | {"r_int": 2}, votes, every=2),
    "nst": row(sfl.nst, HALF),
    "sensitivity": row(sfl.sensitivity, HALF),
    "snip": row(sfl.snip, HALF, votes_for, scores=sensitive),
    "grasp": row(sfl.grasp, HALF, votes_for, scores=flows),
    "hetero_spdst": row(sfl.hetero_spdst, TIERS),
    "hetero_jmwst": row(sfl.hetero_jmwst, TIERS),
    "hetero_jmwst_frozen": row(sfl.hetero_jmwst, TIERS | {"submask": "frozen"}),
    "ssfl": row(sfl.ssfl, HALF, regrowth.scores_of_all),
    "ssfl_seed": row(sfl.ssfl, HALF | {"initial": "seed"}),
    "magnitude": row(sfl.magnitude, {"density": 0.3}, frozen),
    "magnitude_layer": row(sfl.magnitude, HALF | LAYER),
    "finetune": row(sfl.finetune, {"scale": 0.5}),
    "feddst": row(sfl.feddst, regrowth.FEDDST, adjusts),
    "fedspa": row(sfl.fedspa, HALF, regrowth.adds_changes),
    "fedspa_own": row(
        sfl.fedspa, HALF | {"shared": False}, regrowth.adds_changes, shared=False
    ),
    "fedspa_dst": row(sfl.fedspa, regrowth.FEDSPA, regrowth.adds_changes, dynamic=True),
    "fedrts": row(sfl.fedrts, regrowth.FEDRTS, draws),
    "fedtiny": row(sfl.fedtiny, regrowth.TINY, regrowth.votes_by_hand),
    "fedmef": row(sfl.fedmef, MEF, extrudes),
    "fedmef_aggregate": row(sfl.fedmef, regrowth.TINY | {"prune_by": "aggregate"}),
    "prunefl": row(sfl.prunefl, FEDERATED, fedavg_by_hand),
    "prunefl_initial": row(sfl.prunefl_initial, SEARCH, searches),
    "scaffold": Row(sfl.scaffold, {"clients": 5}, obeys, local.make_optimizer()),
    "spafl": row(sfl.spafl, {"alpha": 0.05}),
    "spafl_seed": row(sfl.spafl, {"initial": "seed"}),
    "local_only": row(sfl.local_only, {"alpha": 0.05}),
    "local_sent": row(sfl.local_only, {"initial": "sent"}),
    "heterofl": row(sfl.heterofl, {}),
    "fedrolex": row(sfl.fedrolex, {"scaler": False, "mask_classes": False}),
    "fedrolex_masked": row(sfl.fedrolex, {}),
    "fiarse": row(sfl.fiarse, {}, holds_the_largest),
    "fiarse_masked": row(
        sfl.fiarse, {"gradient": "masked"}, holds_the_largest, biased=False
    ),
    "fjord": row(sfl.fjord, GRID, drops_widths),
    "fjord_round": row(sfl.fjord, GRID | {"draw": "round"}, drops_widths),
    "fjord_distill": row(sfl.fjord, GRID | {"distill": True}, drops_widths),
    "flasc": row(sfl.flasc, FLASC, sends_the_largest),
    "flasc_masked": row(sfl.flasc, GRADUAL, sends_the_largest, **HALVED),
    "rank_tiers": row(sfl.rank_tiers, {"server_optimizer": optax.sgd(1.0)}, plain_mean),
    "pqsu": row(sfl.pqsu, HALF, uploads_what_helps),
    "sparsyfed": row(sfl.sparsyfed, {"density": LARGEST}, trains_powers),
}
for uplink in UPLINKS:
    given = SPARSE | {"uplink": uplink}
    TABLE[f"zerofl_{uplink}"] = row(sfl.zerofl, given, computes_sparsely, uplink=uplink)


# It is FedAvg within a mask. The others need `-m slow`: a default run is short.
QUICK = ("spdst",)


def broken_laws(world) -> list[str]:
    found = []
    for law in laws.LAWS.values():
        try:
            law(world)
        except laws.ContractError as error:
            found.append(str(error))
    return found


@mostly_slow(TABLE, quick=QUICK)
def test_method(name):
    row = TABLE[name]
    world = small_world.make_world(row.factory, row.kwargs, optimizer=row.optimizer)
    assert not broken_laws(world)
    row.check(world)
    if name not in ELSEWHERE:
        multiplies(world, WORK[name])
