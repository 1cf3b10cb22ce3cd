"""Unequal ranks of adapters: who holds what, both means, bits, identities."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sparsefl_jax.algorithms import rank_tiers
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.testing import laws
from sparsefl_jax.wire.packets import Packet
from tests.models.adapters_test import SGD, adapted_network, network, run, train_records
from tests.reference.by_hand import KEY, bare, bits, close, context, merged, same
from tests.refusals import refused
from tests.testing.contract_laws_test import flat_model, images

SUM = {"server_optimizer": optax.sgd(1.0)}
RANK = 4
A, B, HEAD = (3, RANK), (RANK, 2), (2, 2)
LEAVES = {"fc": {"lora_a": {"kernel": A}, "lora_b": {"kernel": B}}, "score": HEAD}


def drawn(seed):
    """Returns normal values of A [3, 4], B [4, 2] and a last layer [2, 2]."""
    shapes = {"is_leaf": lambda x: isinstance(x, tuple)}
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda s: np.float32(rng.normal(size=s)), LEAVES, **shapes)


def cut(params, rank):
    """Returns the first columns of A, the first rows of B, and the last layer."""
    a, b = (params["fc"][f"lora_{name}"]["kernel"].copy() for name in "ab")
    a[:, rank:], b[rank:] = 0, 0
    return {
        "fc": {"lora_a": {"kernel": a}, "lora_b": {"kernel": b}},
        "score": params["score"],
    }


def begun(method, start):
    return method.init(KEY, SparseModel(jax.tree.map(jnp.asarray, start), None, {}))


@pytest.mark.parametrize("budget, rank", [(0.25, 1), (0.26, 2), (1.0, 4)])
def test_what_comes_down(budget, rank):
    """5 entries for each rank and 4 of the last layer, without positions."""
    start = drawn(0)
    method = rank_tiers(bare(start), SGD, **SUM)
    down = method.broadcast(KEY, context(budget=budget), begun(method, start))
    same(down["params"].values, cut(start, rank))
    assert bits(down) == 32 * (5 * rank + 4)


@pytest.mark.parametrize("coverage", (False, True))
def test_the_means_by_hand(coverage):
    """Clients of ranks 1 and 3: the third rank is halved, or is one client's alone."""
    start, changes, ranks = drawn(0), (drawn(1), drawn(2)), (1, 3)
    method = rank_tiers(bare(start), SGD, coverage=coverage, **SUM)
    server, sent = begun(method, start), []
    for rank, change in zip(ranks, changes, strict=True):
        ctx = context(budget=rank / RANK, size=rank)
        down = method.broadcast(KEY, ctx, server)["params"]
        held = Packet(cut(change, rank), down.mask, index="none")
        sent.append((ctx, {"delta": held, "stats": Packet({})}))
    new, _ = merged(method, server, *sent)
    one, other = (cut(c, r) for c, r in zip(changes, ranks, strict=True))
    want = jax.tree.map(lambda w, x, y: w + (x + y) / 2, start, one, other)
    if coverage:
        for name, place in (("lora_a", np.s_[:, 1:3]), ("lora_b", np.s_[1:3])):
            of = (tree["fc"][name]["kernel"][place] for tree in (start, other))
            want["fc"][name]["kernel"][place] = sum(of)
    close(new.params, want)


def test_what_goes_up():
    """A rank has 6 entries of A and 8 of B; 18 of the last layer always travel."""
    model = adapted_network()
    for coverage in (False, True):
        method = rank_tiers(model, SGD, coverage=coverage, **SUM)
        budgets = np.float32([0.5, 0.5, 1.0])
        (record,) = train_records(run(method, model, cohort=3, budgets=budgets))
        assert sorted(record["bits_up_by_client"]) == [32 * 32, 32 * 32, 32 * 46]


def test_budgets_are_for_adapters():
    model, budgets = network(), np.float32([0.5, 0.5, 1.0])
    method = rank_tiers(model, SGD, **SUM)
    refused(lambda: run(method, model, budgets=budgets), "budgets have no effect here")


@pytest.mark.slow
@pytest.mark.parametrize("coverage", (False, True))
def test_laws_on_adapters(coverage):
    """Clients of budgets 0.3, 0.4 and 0.5 hold 3, 4 and 5 ranks of 10."""
    data = images()
    parts = {"targets": ("fc1/kernel",), "whole": ("fc2/*",)}
    model = flat_model(data, widths=(16,)).with_adapters(10, **parts)
    given = {"model": model, "data": data, "progress": False, "coverage": coverage}
    laws.check_algorithm(rank_tiers, **given, **SUM)
