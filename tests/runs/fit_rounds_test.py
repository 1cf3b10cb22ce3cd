"""The number of rounds that a budget pays for, by hand."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from absl import flags

from sparsefl_jax.config import command_line
from sparsefl_jax.config.defaults import default_config, freeze
from sparsefl_jax.core import keys
from sparsefl_jax.data import cohorts
from sparsefl_jax.presets import methods
from sparsefl_jax.runs import experiment, fit_rounds, simulate

WEIGHTS = 784 * 16 + 16 + 16 * 10 + 10  # of the MLP below
ROUND = 2 * 3 * 32 * WEIGHTS / 1e9  # Gbit: both ways, 3 clients, float32


def config(method="fedavg", density=None, **fit):
    """Returns a small configuration on embedded images, to fit by these fields."""
    config = default_config()
    config.dataset, config.model.name = "fashion_mnist_sample", "mlp"
    config.num_clients, config.cohort_size, config.num_rounds = 10, 3, 2
    config.model.widths = (16,)
    methods.choose(config, method, density).fit.update(fit)
    return config


def pretend(monkeypatch, alive=lambda round, rounds: 1.0):
    """Lets pilots find dense messages times `alive`, always of the same clients."""

    def run(key, programs):
        records, gbit, (stage,) = [], 0.0, programs.setup.stages
        for round in range(stage.num_rounds):
            bits = [32 * WEIGHTS * alive(round, stage.num_rounds)] * 3
            each = {"bits_down_by_client": bits, "bits_up_by_client": bits}
            gbit += 2 * sum(bits) / 1e9
            spent = {"gbit_cumulative": gbit, "pflop_cumulative": (round + 1) / 1e3}
            spent |= {"bits_down": sum(bits), "bits_up": sum(bits)}
            one = {"phase": "train", "stage": 0, "clients": [0, 1, 2], "flops": 1e12}
            records.append(one | each | spent)
        yield SimpleNamespace(records=records)

    monkeypatch.setattr(simulate, "simulate", run)


@pytest.fixture(scope="module", autouse=True)
def read_once():
    """Reads the images once for all tests."""
    data = experiment.build_data(freeze(config()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "build_data", lambda config: data)
        yield


@pytest.mark.parametrize("rounds", [0.5, 1, 7.99, 5000.5])
def test_a_dense_budget_pays_for_whole_rounds(rounds):
    """Dense models cost the same in every round, which needs no pilot."""
    asked = config(gbit=rounds * ROUND)
    if rounds < 1:
        with pytest.raises(ValueError, match="does not pay for one round"):
            fit_rounds.fit(asked, experiment.build)
        return
    found, said = fit_rounds.fit(asked, experiment.build)
    assert found.num_rounds == int(rounds) and found.fit.by == "messages"
    assert f"pays for {int(rounds)} rounds, by the sizes of its messages" in said


def test_exchanges_follow_from_shapes_or_need_a_pilot():
    """SpaFL hands each client the network once; a mask says what travels."""
    setup = lambda *of: experiment.build(config(*of)).setup  # noqa: E731
    once = 32 * WEIGHTS / 1e9
    assert fit_rounds.exchange_by_shape(setup()) == pytest.approx((2 * once, 2 * once))
    first, again = fit_rounds.exchange_by_shape(setup("spafl"))
    assert 0 < again < 0.1 * first and first - again == pytest.approx(once)
    assert fit_rounds.exchange_by_shape(setup("pdst", 0.2)) is None


def test_the_smaller_of_two_budgets_counts(monkeypatch):
    pretend(monkeypatch)
    asked = config(gbit=9 * ROUND, pflop=5.5e-3)  # a PFLOP in a thousand rounds
    rounds = fit_rounds.fit(asked, experiment.build)[0].num_rounds
    # Clients have not all the same number of samples.
    assert 4 <= rounds <= 7
    asked.fit.pflop = 1.0
    assert fit_rounds.fit(asked, experiment.build)[0].num_rounds == 9


def test_a_schedule_spans_the_rounds_that_it_pays_for(monkeypatch):
    """FedSparsify's density falls in all rounds, those of the pilot too."""
    budget = 12

    def alive(t, rounds):
        left = 1 - max(t - 1, 0) / (rounds - 1)
        return 0.1 + 0.9 * left**2

    pretend(monkeypatch, alive)
    asked = config("fedsparsify_global", 0.1, gbit=budget * ROUND)
    asked.algorithm.power = 2.0
    cost = {T: sum(alive(t, T) for t in range(T)) for T in range(2, 100)}
    pays = max(T for T, dense in cost.items() if dense <= budget)
    found = fit_rounds.fit(asked, experiment.build)[0].num_rounds
    assert found == pays and 2 * budget < pays


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pdst", "fedsparsify_global", "jmwst"])
def test_a_run_spends_its_budget(method, tmp_path):
    """A fitted run costs at most a little more, and one more round would not fit."""
    asked = config(method, 0.2, gbit=12 * ROUND)
    summary = experiment.run(asked, tmp_path / "run", progress=False)
    kept = json.loads((tmp_path / "run/config.json").read_text())
    rounds = kept["num_rounds"]
    spent = [s["bits_up"] + s["bits_down"] for s in summary["stages"]]
    assert 12 < rounds == summary["stages"][-1]["rounds"]
    budget, each = 12 * ROUND * 1e9, spent[-1] / rounds
    # What a pilot sees of masks that change is a sample, so leave it 2 %.
    assert sum(spent) < 1.02 * budget < sum(spent) + each + 0.04 * budget
    if "rounds" in kept["algorithm"]:  # its schedule spans the run
        assert kept["algorithm"]["rounds"] == rounds


def test_a_run_that_goes_on_keeps_its_rounds():
    """Started again, a budget is not measured again; another budget is."""
    asked, begun = config(gbit=3 * ROUND), config(gbit=3 * ROUND)
    begun.num_rounds, begun.fit.by = 77, "pilot"
    kept = fit_rounds.resume_rounds(asked, begun)
    assert (kept.num_rounds, kept.fit.by) == (77, "pilot")
    assert fit_rounds.fit(begun, build=None) == (begun, "")
    asked.fit.gbit = 4 * ROUND
    assert fit_rounds.resume_rounds(asked, begun) is None


@pytest.mark.parametrize("resumed, by", [(None, None), ("a", "pilot")])
def test_a_new_run_of_a_kept_configuration_fits_its_budget(tmp_path, resumed, by):
    """What a run was fitted by holds for that run alone."""
    kept = config(gbit=1.0, by="pilot")
    path = tmp_path / "config.json"
    path.write_text(kept.to_json_best_effort())
    values = flags.FlagValues()
    command_line.define_config(values)
    command_line.parse_flags(
        ["launch.py", f"--config={path}", "--config.fit.gbit=2.0"], values
    )
    found = command_line.configuration(values, resumed)
    assert (found.fit.gbit, found.fit.by) == (2.0, by)


def test_a_budget_that_later_rounds_do_not_spend_is_refused(monkeypatch):
    """Only the first round sends something, as with fine-tuning."""
    pretend(monkeypatch, alive=lambda round, rounds: float(round == 0))
    with pytest.raises(ValueError, match=r"fit.gbit=.*later rounds"):
        fit_rounds.fit(config("pdst", 0.2, gbit=5 * ROUND), experiment.build)


def test_most_limits_the_rounds_over_which_evaluations_are_spread():
    """Twelve rounds in five parts: one every two rounds, and at least every round."""
    asked = config(gbit=13 * ROUND, pilot=4, most=12, evaluations=5)
    found, said = fit_rounds.fit(asked, experiment.build)
    assert said.endswith("pays for 12 rounds, by fit.most")
    assert (found.num_rounds, found.eval_every, found.fit.by) == (12, 2, "most")
    asked.fit.evaluations = 40
    assert fit_rounds.fit(asked, experiment.build)[0].eval_every == 1


@pytest.mark.parametrize("name", ["gbit", "pflop"])
def test_first_exchanges_and_samples_are_those_of_the_runs_cohorts(name, monkeypatch):
    """A client's first exchange costs 3, later ones 1; its samples tell the FLOPs."""

    def rounds_of(setup, seed, number):
        """Yields (clients, Gbit of each, PFLOP of all) of a run's first rounds."""
        sizes, seen = setup.data.train.size, set()
        root = keys.of_stage(keys.of_run(jax.random.key(seed))[1], 0)
        for ids in cohorts.make_draw(root, setup.stages[0], 10)(np.arange(number)):
            gbit = [1.0 if i in seen else 3.0 for i in ids.tolist()]
            yield ids.tolist(), gbit, float(sizes[ids].sum())
            seen |= {*ids.tolist()}

    asked = config("pdst", 0.2)

    def run(key, programs):
        setup, records, spent = programs.setup, [], {"gbit": 0.0, "pflop": 0.0}
        number = setup.stages[0].num_rounds
        for ids, gbit, pflop in rounds_of(setup, asked.seed, number):
            spent = {"gbit": spent["gbit"] + sum(gbit), "pflop": spent["pflop"] + pflop}
            record = {f"{key}_cumulative": value for key, value in spent.items()}
            record |= {"phase": "train", "stage": 0, "bits_down": 0, "bits_up": 0}
            record |= {"clients": ids, "flops": 1e15 * pflop}
            record |= {"bits_down_by_client": [1e9 * g for g in gbit]}
            records.append(record | {"bits_up_by_client": [0] * 3})
        yield SimpleNamespace(records=records)

    monkeypatch.setattr(simulate, "simulate", run)
    setup = experiment.build(fit_rounds.with_rounds(asked, 60)).setup
    each = [(sum(g), p) for _, g, p in rounds_of(setup, asked.seed, 60)]
    spent = np.cumsum(each, 0)[:, int(name == "pflop")]
    for rounds in (39, 40):  # and a half of the next one
        asked.fit.update({name: float(spent[rounds - 1 : rounds + 1].mean())})
        assert fit_rounds.fit(asked, experiment.build)[0].num_rounds == rounds
