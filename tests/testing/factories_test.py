"""Every method refuses, before it compiles anything, arguments that it cannot take."""

import inspect

import pytest

import sparsefl_jax as sfl
from sparsefl_jax.core.types import Share
from tests.reference.by_hand import needed
from tests.refusals import refused

MODEL, OPTIMIZER = sfl.testing.tiny_model(), sfl.training.make_optimizer()

# argument -> values that no method takes, and values at the ends of what it takes.
SHARE, FRACTION = ((0.0, 1.01), (1.0, 0.01)), ((-0.01, 1.01), (0.0, 1.0))
POSITIVE, FROM_0, FROM_1 = ((0.0,), (1e-3,)), ((-1e-6,), (0.0,)), ((0,), (1,))
FINITE, EVERY = ((-1e-6, float("inf")), (0.0,)), ((0, 1.5), (1,))
NUMBERS = {
    **dict.fromkeys(("decay", "density", "keep_inputs", "max_density"), SHARE),
    **dict.fromkeys(("gamma", "mask_ratio", "prune_rate"), FRACTION),
    **dict.fromkeys(("start_accuracy", "warmup"), FRACTION),
    **dict.fromkeys(("aggregation_ratio", "half_life", "server_rate"), POSITIVE),
    **dict.fromkeys(("temperature", "vote_weight"), POSITIVE),
    **dict.fromkeys(("alpha", "constant_time", "mu", "rho"), FROM_0),
    **dict.fromkeys(("max_iterations", "num_batches", "r_int"), FROM_1),
    **dict.fromkeys(("lam", "penalty", "scale"), FINITE),
    **dict.fromkeys(("adjust_every", "decay_every"), EVERY),
    "adjust_until": ((0, 2.5), (2,)),
    "alpha_range": (
        ((0.0, 0.1), (0.2, 0.1), (0.1,), (0.1, float("inf"))),
        ((1e-3, 1.0), (0.1, 0.1)),
    ),
    "begin": ((-1, 1.5), (0, 3)),
    "densities": (((0.5, 1.01), (0.0, 0.5), ()), ((1.0,), (0.5, 0.01))),
    "epsilon": ((0.0, 0.5), (0.01, 0.49)),
    "exponent": ((0.99,), (1.0, 4.0)),
    "frequency": ((0, 5), (1, 4)),
    "layers": ((-1, 2, 0.5), (0, 1)),
    "layer_time": (((1.0, 0.0), (1.0, float("inf")), (1.0,)), ((1.0, 2.0),)),
    "magnitude": ((0.0, float("inf")), (1e-8,)),
    "personal_epochs": ((0, 1.5), (1, 7)),
    "power": ((0.0,), (0.5,)),
    "prune": ((0.0, 1.01), (0.01, 1.0)),
    "reconfigure_every": FROM_1,
    "rounds": ((1,), (2,)),
    "sizes": (((0.0,), (0.5, 1.01)), ((), (0.01, 1.0))),
    "up_density": ((0.0, 1.01, 1e-3), (1.0, 0.01)),
    "widths": (((0.0, 1.0), (0.5, 1.01), (0.5, 0.5)), ((1.0,), (0.01, 1.0))),
}
# `index` is missing: a packet refuses it, when the first round is traced.
NAMES = (
    *("allocation", "criterion", "draw", "fill", "gradient", "initial", "mask"),
    *("mask_update", "merge", "mode", "noise", "prune_by", "quantize", "select"),
    *("start", "submask", "train", "uplink", "variant", "weighting", "weights"),
)


def make(name, model=MODEL, **changed):
    """Builds a method with the arguments that have no default, and with `changed`."""
    factory = getattr(sfl, name)
    takes = inspect.signature(factory).parameters
    given = needed(factory)
    if "mask_update" in takes and {"adjust_until", "prune_rate"} & set(changed):
        given |= {"mask_update": "dst", "adjust_until": 4}
    return factory(model, OPTIMIZER, **given | changed)


def arguments(among):
    """Returns (method, argument) for every method that takes the argument."""
    return [
        (name, argument)
        for name in sfl.algorithms.ALGORITHMS
        for argument in inspect.signature(getattr(sfl, name)).parameters
        if argument in among
    ]


@pytest.mark.parametrize("name", sfl.algorithms.ALGORITHMS)
def test_what_is_no_model_is_refused(name):
    refused(lambda: make(name, model=lambda x: x), "model=<function ")


@pytest.mark.parametrize("name, argument", arguments(NUMBERS))
def test_numbers_out_of_range_are_refused_and_the_ends_are_not(name, argument):
    wrong, right = NUMBERS[argument]
    for value in wrong:
        said = f"{argument}="
        refused(lambda v=value: make(name, **{argument: v}), said)
    for value in right:
        rounds = {"frequency": 1} if argument == "rounds" else {}
        make(name, **{argument: value} | rounds)


@pytest.mark.parametrize("name, argument", arguments(NAMES))
def test_unknown_names_are_refused(name, argument):
    refused(lambda: make(name, **{argument: "nothing"}), f"{argument}='nothing'")


@pytest.mark.parametrize("name, argument", arguments(("prunable",)))
def test_a_glob_that_matches_nothing_is_refused(name, argument):
    said = "'conv9/kernel' matches no leaf"
    refused(lambda: make(name, **{argument: ("conv9/kernel",)}), said)


@sfl.method
def own(model, optimizer, *, share: Share, what: str = "a", bound=1.0, **others):
    if others:
        raise AssertionError("this runs after the check")
    return sfl.fedavg(model, optimizer)


@pytest.mark.parametrize(
    "given, error, said",
    [
        ({"share": 2, "others": 1}, ValueError, "share=2, expected in (0, 1]"),
        ({"share": 1, "what": 3}, ValueError, "what=3, expected a string"),
        ({"what": "b"}, TypeError, "own() missing 1 required keyword-only argument"),
    ],
)
def test_an_own_method_is_checked_before_it_is_built(given, error, said):
    with pytest.raises(error) as caught:
        own(MODEL, OPTIMIZER, **given)
    assert str(caught.value).startswith(said)
    made = own(MODEL, OPTIMIZER, share=1, bound=float("inf"))
    assert (made.name, made.settings["share"]) == ("own", 1)


# What each method's paper or released code sets (see docs/methods): every default.
EXAMPLES, UNIFORM = {"weighting": "examples"}, {"weighting": "uniform"}
KERNELS, ADDED = {"prunable": ("*kernel",)}, {"server_optimizer": None}
FEDAVG = ADDED | EXAMPLES | {"keep_optimizer": False}
MASK = KERNELS | {"index": "bitmap"}
MASKS = KERNELS | {"index": "packed"}  # they change all the time
FLASH = MASK | {"prune_rate": 0.25, "prune_rate_decay": True}
TIERS = {"densities": (0.1, 0.15, 0.2), "average": "wfa"}
ROLLED = {"scaler": True, "mask_classes": True}
SENT = {"initial": "sent"}
SPAFL = KERNELS | {"alpha": 0.002, "variant": "paper", "clamp": False}
SPAFL |= {"keep_optimizer": False}
SPARSIFY = {"frequency": 1, "power": 3.0, "keep_optimizer": True}
SPARSIFY |= {"prunable": ("*",), "index": "bitmap"}
PRUNEFL = MASK | {"reconfigure_every": 50, "prune_rate": 0.3}
PRUNEFL |= {"layer_time": None, "constant_time": 0.0, "max_density": 1.0}
ADJUSTING = MASKS | {"adjust_every": 10, "adjust_until": 300, "prune_rate": 0.4}
ADJUSTING |= {"start": "random", "allocation": "erk"}
UNSET = ("down", "feedback", "density", "scope", "bits", "bucket", "index", "clients")
PRINTED = {
    "complement": {"aggregation_ratio": 1.5, "index": "bitmap"},
    "compressed": FEDAVG
    | dict.fromkeys((*UNSET, "weighting"))
    | {"up": "topk", "start": "zero", "stale": "keep"},
    "ditto": ADDED | EXAMPLES | {"lam": 1.0, "personal_epochs": None},
    "fedavg": FEDAVG | {"prune": None},
    "fedbat": KERNELS
    | EXAMPLES
    | {"rho": 6.0, "warmup": 0.5, "alpha_range": (5e-4, 5e-2)},
    "feddst": MASKS
    | {"adjust_every": 10, "prune_rate": 0.5, "allocation": "erk_sparsity"}
    | {"variant": "paper"},
    "fedluar": FEDAVG | KERNELS | {"layers": 1, "select": "score", "fill": "recycle"},
    "fedmef": ADJUSTING | {"penalty": 1e-4, "keep_inputs": 1.0, "prune_by": "received"},
    "fedmrn": KERNELS
    | EXAMPLES
    | {"noise": "uniform", "magnitude": 0.01, "mask": "binary"}
    | {"progressive": True, "index": "none"},
    "fedpm": SENT | {"weights": "constants", "epsilon": 0.01, "keep_optimizer": True},
    "fedprox": FEDAVG | {"mu": 0.01},
    "fedrolex": ROLLED,
    "quantized": FEDAVG | {"bits": 8},
    "fedrts": ADJUSTING | {"gamma": 0.5, "vote_weight": 10.0},
    "fedspa": MASKS
    | {"mask_update": "static", "shared": True, "prune_rate": None}
    | {"allocation": "erk", "adjust_until": None},
    "fedtiny": ADJUSTING,
    "fedsparsify_global": SPARSIFY
    | ADDED
    | {"begin": 1, "criterion": "magnitude", "scope": "global"},
    "fedsparsify_local": SPARSIFY | {"merge": "majority"},
    "finetune": MASKS | {"scale": 1.0},
    "fiarse": MASKS | {"gradient": "biased", "sizes": (), "server_rate": 1.0},
    "fjord": EXAMPLES
    | {"widths": (0.2, 0.4, 0.6, 0.8, 1.0), "draw": "batch", "distill": False},
    "flasc": ADDED
    | UNIFORM
    | {"up_density": None, "decay": 1.0, "decay_every": 1, "train": "dense"}
    | {"prunable": ("*",), "index": "packed"},
    "grasp": MASK
    | {"temperature": 200.0, "halves": True, "first_samples": False, "mode": "train"},
    "hetero_jmwst": FLASH | TIERS | {"r_int": 1, "submask": "magnitude"},
    "hetero_spdst": MASK | TIERS | {"submask": "frozen"},
    "heterofl": ROLLED,
    "jmwst": FLASH | {"r_int": 1, "average": "fedavg"},
    "local_only": SPAFL | {"initial": "seed"},
    "magnitude": MASK | {"scope": "global", "keep_optimizer": False},
    "nst": FLASH,
    "pdst": MASK | {"allocation": "uniform"},
    "pqsu": MASK | UNIFORM | {"quantize": "both", "selective": True},
    "prunefl": PRUNEFL | {"half_life": 10000.0},
    "prunefl_initial": PRUNEFL
    | {"num_batches": 10, "max_iterations": 1000, "start_accuracy": 0.15},
    "rank_tiers": ADDED | UNIFORM | {"coverage": False},
    "scaffold": ADDED,
    "sensitivity": FLASH | {"group": 0},
    "snip": MASK | {"first_samples": False, "mode": "train"},
    "spafl": SPAFL
    | SENT
    | {"extract": True, "thresholds_only": False, "charge_delta": True},
    "sparsyfed": MASKS | EXAMPLES | {"exponent": 1.25, "sparse_inputs": True},
    "spdst": MASK | {"keep_optimizer": False},
    "zerofl": MASKS
    | EXAMPLES
    | {"mask_ratio": 0.2, "uplink": "top_of_diff", "sparse_inputs": True},
    "ssfl": KERNELS | EXAMPLES | SENT | {"mode": "inference"},
}


@pytest.mark.parametrize("name", sfl.algorithms.ALGORITHMS)
def test_the_defaults_are_those_of_the_paper(name):
    takes = inspect.signature(getattr(sfl, name)).parameters.values()
    given = {a.name: a.default for a in takes if a.default is not a.empty}
    assert given == PRINTED[name]
