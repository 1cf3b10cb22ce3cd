"""Every method refuses, before it compiles anything, arguments that it cannot take."""

import inspect

import pytest

import sparsefl_jax as sfl
from tests.reference.by_hand import needed
from tests.refusals import refused

MODEL, OPTIMIZER = sfl.testing.tiny_model(), sfl.training.make_optimizer()

# argument -> values that no method takes, and values at the ends of what it takes. Of
# each kind of number one; other arguments have a check of their own.
NUMBERS = {
    "density": ((0.0, 1.01), (1.0, 0.01)),
    "prune_rate": ((-0.01, 1.01), (0.0, 1.0)),
    "temperature": ((0.0,), (1e-3,)),
    "lam": ((-1e-6, float("inf")), (0.0,)),
    "adjust_every": ((0, 1.5), (1,)),
    "alpha_range": (((0.2, 0.1), (0.1, float("inf"))), ((1e-3, 1.0), (0.1, 0.1))),
    "densities": (((0.5, 1.01), ()), ((1.0,), (0.5, 0.01))),
    "epsilon": ((0.0, 0.5), (0.01, 0.49)),
    "frequency": ((0, 5), (1, 4)),
    "layers": ((-1, 2, 0.5), (0, 1)),
    "layer_time": (((1.0, 0.0), (1.0,)), ((1.0, 2.0),)),
    "widths": (((0.0, 1.0), (0.5, 0.5)), ((1.0,), (0.01, 1.0))),
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
        make(name, **{argument: value})


@pytest.mark.parametrize("name, argument", arguments(NAMES))
def test_unknown_names_are_refused(name, argument):
    refused(lambda: make(name, **{argument: "nothing"}), f"{argument}='nothing'")


@pytest.mark.parametrize("name, argument", arguments(("prunable",)))
def test_a_glob_that_matches_nothing_is_refused(name, argument):
    said = "'conv9/kernel' matches no leaf"
    refused(lambda: make(name, **{argument: ("conv9/kernel",)}), said)


# Numbers and choices that a paper or its released code sets (see docs/methods).
PRINTED = {
    "complement": {"aggregation_ratio": 1.5},
    "fedavg": {"weighting": "examples", "keep_optimizer": False},
    "fedbat": {"rho": 6.0, "warmup": 0.5},
    "feddst": {"prune_rate": 0.5, "allocation": "erk_sparsity", "variant": "paper"},
    "fedluar": {"select": "score", "fill": "recycle"},
    "fedmrn": {"noise": "uniform", "mask": "binary", "progressive": True},
    "fedpm": {"weights": "constants", "keep_optimizer": True},
    "fedrts": {"prune_rate": 0.4, "gamma": 0.5, "vote_weight": 10.0},
    "fedsparsify_global": {"power": 3.0, "prunable": ("*",), "criterion": "magnitude"},
    "fiarse": {"gradient": "biased", "server_rate": 1.0},
    "flasc": {"weighting": "uniform", "train": "dense"},
    "grasp": {"temperature": 200.0, "halves": True},
    "hetero_jmwst": {"densities": (0.1, 0.15, 0.2), "average": "wfa"},
    "jmwst": {"prune_rate": 0.25, "prune_rate_decay": True, "average": "fedavg"},
    "prunefl": {"prune_rate": 0.3, "reconfigure_every": 50, "half_life": 10000.0},
    "spafl": {"alpha": 0.002, "extract": True, "charge_delta": True},
    "sparsyfed": {"exponent": 1.25, "sparse_inputs": True},
    "zerofl": {"mask_ratio": 0.2, "uplink": "top_of_diff"},
}


@pytest.mark.parametrize("name", PRINTED)
def test_the_defaults_are_those_of_the_paper(name):
    takes = inspect.signature(getattr(sfl, name)).parameters
    assert {argument: takes[argument].default for argument in PRINTED[name]} == (
        PRINTED[name]
    )
