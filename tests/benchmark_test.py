"""The rules of the benchmark: its tries, its configurations, and the choice."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest

from benchmarks.v1 import rules, run
from benchmarks.v1.rules import MOMENTUM, RATE, Method
from sparsefl_jax.algorithms import ALGORITHMS
from sparsefl_jax.report.load import Run
from sparsefl_jax.runs.config import build, fields
from sparsefl_jax.runs.config.defaults import values
from tests.tiny import network

PLAIN = Method()
OWN = {"algorithm.scope": ("global", "leaf"), "algorithm.power": (1.0, 2.0, 3.0)}


def configured(name, settings=None, workload="fashion", **options):
    """Returns the configuration of a method of the benchmark."""
    method = rules.METHODS[workload][name]
    settings = settings or {RATE: 0.1}
    return rules.configuration(workload, name, method, settings, **options)


def test_each_eighth_of_the_range_has_a_rate_and_each_value_its_share():
    """Eighths of .01 to 1 on a log scale end at .01 * 100^(k/8)."""
    tried = rules.tries(Method(OWN), 8)
    rates = [each[RATE] for each in tried]
    for part, rate in enumerate(rates):
        low, high = (0.01 * 100 ** ((part + k) / 8) for k in (0, 1))
        assert 0.98 * low <= rate <= 1.02 * high  # two digits
    for field, count in ((MOMENTUM, 4), ("algorithm.scope", 4), ("algorithm.power", 2)):
        chosen = [each[field] for each in tried]
        assert min(map(chosen.count, chosen)) >= count
    for field, size in ((MOMENTUM, 2), ("algorithm.power", 3)):
        for at in range(0, 8 - size + 1, size):  # all values in each block of rates
            assert len({each[field] for each in tried[at : at + size]}) == size
    assert [each[RATE] for each in rules.tries(Method(), 8)] == rates
    assert MOMENTUM not in rules.tries(Method(momentum=False), 3)[0]


def test_a_winner_at_an_edge_is_extended_by_a_step():
    """Powers 2 and 3 have the ratio 3/2: 4.5 follows. What has no order has no edge.

    A step of the rate is 100^(1/8) = 1.778.
    """
    middle = rules.tries(Method(OWN), 8)[3]
    best = middle | {"algorithm.power": 3.0}
    (further,) = rules.beyond(best, Method(OWN), 8)
    assert further == best | {"algorithm.power": 4.5}
    assert not rules.beyond(middle | {"algorithm.power": 2.0}, Method(OWN), 8)
    shares = {"algorithm.prune_rate": (0.25, 0.5, 0.75)}  # 1.1 is none
    best = middle | {"algorithm.prune_rate": 0.75}
    assert not rules.beyond(best, Method(shares), 8)
    whole = {"algorithm.r_int": (1, 5, 20)}  # 80 follows, and nothing comes before 1
    for value, found in ((20, [80]), (1, [])):
        best = middle | {"algorithm.r_int": value}
        steps = rules.beyond(best, Method(whole), 8)
        assert [step["algorithm.r_int"] for step in steps] == found
    server = {"server_optimizer.learning_rate": (0.001, 0.01, 0.1)}  # no share
    best = middle | {"server_optimizer.learning_rate": 0.1}
    (further,) = rules.beyond(best, Method(server), 8)
    assert further["server_optimizer.learning_rate"] == 1.0
    names = {"algorithm.draw": ("a", "b", "c"), "algorithm.alpha": (0.0, 0.1, 0.2)}
    best = middle | {"algorithm.draw": "c", "algorithm.alpha": 0.2}
    assert not rules.beyond(best, Method(names), 8)
    lowest, *_, highest = rules.tries(Method(), 8)
    for edge, ratio in ((lowest, 1 / 1.778), (highest, 1.778)):
        (further,) = rules.beyond(edge, Method(), 8)
        assert math.isclose(further[RATE], ratio * edge[RATE], rel_tol=0.05)


def test_a_configuration_spends_a_share_of_the_budget():
    settings = {RATE: 0.3, MOMENTUM: 0.9, "first_stage.epochs": 2}
    config = configured("spdst", settings, seed=100, density=0.05, share=0.25)
    assert (config.fit.gbit, config.fit.most, config.fit.evaluations) == (0.5, 112, 40)
    assert (config.until.gbit, config.seed, config.metric) == (0.5, 100, "pooled")
    assert (config.num_clients, config.cohort_size, config.epochs) == (100, 10, 2)
    assert (config.val_fraction, config.system) == (0.1, "mobile")
    assert (config.partition.name, config.partition.alpha) == ("dirichlet", 0.1)
    assert (config.optimizer.learning_rate, config.optimizer.momentum) == (0.3, 0.9)
    assert config.first_stage.density == config.density == 0.05
    assert (config.first_stage.epochs, config.algorithm.name) == (2, "spdst")


@pytest.mark.parametrize(
    ("workload", "parameters"),
    [("fashion", 118_282), ("cifar10", 89_946), ("writers", 430_500)],
)
def test_the_dense_rounds_are_those_that_the_budget_pays(workload, parameters):
    """Ten clients, both ways, 32 bits a parameter."""
    task = rules.WORKLOADS[workload]
    assert task.dense == int(1e9 * task.gbit / (10 * 2 * 32 * parameters))


def test_tuning_sees_no_seed_that_counts():
    counted = range(max(task.seeds for task in rules.WORKLOADS.values()))
    assert not set(counted) & set(rules.TUNING_SEEDS)


def test_densities_and_first_stages_of_what_is_dense_first():
    """A half of a quarter of 26 dense rounds is 3; FedAvg is pruned at the end."""
    tried = {RATE: 0.1, "first_stage.share": 0.5}
    config = configured("magnitude", tried, density=0.2, share=0.25)
    assert (config.first_stage.num_rounds, config.algorithm.density) == (3, 0.2)
    config = configured("fedavg_pruned", density=0.2)
    assert (config.algorithm.prune, config.density) == (0.2, None)


def test_a_common_model_is_trained_further_by_all_clients():
    method = rules.finetuned("fashion", "topk")
    last = {"finetune.scale": 0.3, "finetune.epochs": 5, "finetune.rounds": 40}
    with pytest.raises(ValueError, match="spdst has a first stage"):
        rules.finetuned("fashion", "spdst")
    config = rules.configuration(
        *("fashion", "topk_finetuned", method, {RATE: 0.1} | last), density=0.05
    )
    fields.check(config)
    first, main = config.first_stage, config.algorithm
    assert (first.name, first.num_rounds, first.cohort_size) == ("compressed", 40, 10)
    assert (first.epochs, first.density, first.up) == (2, 0.05, "topk")
    assert (main.name, main.scale, config.epochs) == ("finetune", 0.3, 5)
    assert (config.num_rounds, config.cohort_size, config.metric) == (1, 100, "clients")
    method = rules.finetuned("fashion", "fedsparsify_global")
    config = rules.configuration(
        *("fashion", "a", method, {RATE: 0.1} | last), density=0.05
    )
    assert config.first_stage.rounds == 40  # the schedule spans the common rounds


def test_personal_models_weight_clients_alike():
    config = configured("ditto")
    assert (config.metric, config.algorithm.weighting) == ("clients", "uniform")


def test_clients_that_train_alone_have_all_rounds():
    """A quarter of 450, evaluated forty times at most."""
    config = configured("local_only", share=0.25)
    assert (config.num_rounds, config.eval_every) == (112, 2)
    assert config.fit.get("gbit") is config.until.get("gbit") is None


def test_every_method_is_in_a_table():
    used = set()
    for name in rules.METHODS["fashion"]:
        config = configured(name)
        used |= {config.algorithm.name, config.first_stage.get("name")}
    used |= {"sparsyfed", "finetune"}  # on CIFAR-10; after a common model
    used |= {"rank_tiers"}  # on adapters
    assert ALGORITHMS.keys() == used - {None}


class FakeRun(dict):
    """A run whose last evaluation is the dict itself."""

    summary = {"seconds": 1.0}

    def done(self, last):
        return 5


@pytest.fixture
def tune(tmp_path, monkeypatch):
    """Tunes a method whose runs end with `score(config)`; None: they diverge."""
    monkeypatch.setattr(run, "RESULTS", tmp_path)
    monkeypatch.setattr(run.evaluations, "last_eval", lambda run: run)

    def tuned(score, name="pdst", workload="fashion", method=PLAIN):
        def ran(task, configs):
            scores = ((c.seed, score(c)) for c in configs.values())
            return [
                {seed: None if s is None else FakeRun(val_accuracy=s)}
                for seed, s in scores
            ]

        monkeypatch.setattr(run, "_run", ran)
        return run.tune(run.Task(workload, name, method, tmp_path))

    return tuned


def test_the_best_two_tries_run_again_and_one_beyond_the_edge(tune):
    """The first two rates are best at a quarter, the second at the whole budget.

    The third diverges. A step below the first follows, 100^(1/8) times smaller.
    """
    rates = [each[RATE] for each in rules.tries(PLAIN, 8)]
    asked = []

    def score(config):
        rate, share = config.optimizer.learning_rate, config.fit.gbit
        asked.append((config.seed, share, rate))
        best = rates[0] if share == 0.5 else rates[1]
        return None if rate == rates[2] else 1 - abs(math.log(rate / best)) / 10

    assert tune(score)[RATE] == rates[1]
    beyond = float(f"{rates[0] / 1.7783:.2g}")
    expected = [(100, 0.5, rate) for rate in rates]
    assert asked == expected + [
        (101, 2.0, rate) for rate in (rates[0], rates[1], beyond)
    ]
    assert tune(score)[RATE] == rates[1] and len(asked) == 11  # nothing is repeated
    tries = run.read_tries("fashion")
    assert (tries["score"].isna().sum(), set(tries["rounds"].dropna())) == (1, {5})


def test_the_next_tries_run_again_where_the_best_diverge(tune):
    """At the whole budget the three best of a quarter diverge, and the fourth ends."""
    rates = [each[RATE] for each in rules.tries(PLAIN, 8)]
    order = [rates[n] for n in (3, 4, 2, 5, 6, 1, 7, 0)]  # the best first; no edge

    def score(config):
        place = order.index(config.optimizer.learning_rate)
        return None if config.fit.gbit == 2.0 and place < 3 else 1 - place / 10

    assert tune(score)[RATE] == order[3]
    assert len(run.read_tries("fashion")) == 8 + 4


def test_other_workloads_try_three_rates_of_the_settings_found_before(tune):
    """Also for an entry of one's own; one without tries has them all here."""
    old = {RATE: 0.5, MOMENTUM: 0.9, "algorithm.allocation": "erk"}
    rows = [(name, 1.0, 101, json.dumps(old), 0.8) for name in ("pdst", "mine")]
    rows.append(("pdst", 0.25, 100, "{}", 0.9))
    columns = ["method", "share", "seed", "settings", "score"]
    run._write(pd.DataFrame(rows, columns=columns), "fashion_tries")
    asked, method = [], Method(name="pdst")
    rates = [each[RATE] for each in rules.tries(method, 3)]

    def score(config):
        asked.append(config)
        return config.optimizer.learning_rate

    for name in ("pdst", "mine"):
        asked.clear()
        found = tune(score, name, "cifar10", method)
        assert [config.optimizer.learning_rate for config in asked] == rates
        assert {config.algorithm.allocation for config in asked} == {"erk"}
        assert {(c.optimizer.momentum, c.fit.gbit) for c in asked} == {(0.9, 0.75)}
        assert found == old | {RATE: rates[-1]}
    tune(score, "new", "cifar10", method)
    assert [config.seed for config in asked].count(100) == 3 + 8


def test_half_of_the_clients_train_the_whole_model():
    """So that every weight of a common model is trained by some client."""
    for name, least in (("heterofl", 0.5), ("fedrolex", 0.5), ("fiarse", 0.25)):
        assert configured(name).budgets == ((least, 0.5), (1.0, 0.5))
    assert configured("heterofl_own").budgets == ((0.5, 1.0),)


def test_a_pilot_is_no_longer_than_the_run_may_be():
    """A quarter of 80 rounds; the whole has room for PruneFL's sixty."""
    for share, pilot in ((0.25, 20), (1.0, 60)):
        config = configured("prunefl", None, "cifar10", density=0.05, share=share)
        assert config.fit.pilot == pilot


def test_a_killed_run_is_no_result_and_a_diverged_one_has_none(tmp_path, monkeypatch):
    monkeypatch.setattr(run.runner, "run", lambda *args, **options: None)
    method = rules.METHODS["fashion"]["pdst"]
    task = run.Task("fashion", "pdst", method, tmp_path)
    configs = {"a": configured("pdst")}
    with pytest.raises(ValueError, match="has not ended"):
        run._run(task, configs)
    note = run.on_disk.failure(tmp_path, "a")
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text("seed 0: training loss is nan\n")
    assert run._run(task, configs) == [{0: None}]
    note.write_text("seed 0: no space is left\n")
    with pytest.raises(ValueError, match="has not ended; .*no space"):
        run._run(task, configs)


def test_records_hold_the_chosen_model_of_the_last_stage():
    """Costs add up over both stages: 2 + 3 rounds; 1.5 Gbit, of which .6 are up."""
    train = [{"stage": 0, "round": 2, "gbit_cumulative": 1.0, "bits_up": 2e8}]
    train += [{"stage": 1, "round": 3, "gbit_cumulative": 1.5, "bits_up": 4e8}]
    models = {"dense": {"accuracy": 0.9, "density": 1.0}}
    early = {"stage": 0, "round": 2, "accuracy": 0.1, "models": models}
    models = models | {"pruned": {"accuracy": 0.7, "density": 0.05}}
    last = early | {"stage": 1, "round": 3, "accuracy": 0.9, "models": models}
    last |= {"client_accuracy": {"mean": 0.6}}
    summary = {"seconds": 9.0, "commit": "abc", "data": {"x": 1}}
    config = {"first_stage": {"name": "fedavg"}}
    ended = Run(Path("a"), train, [early, last], [0, 2], summary, config, None)
    (row,) = run.records(ended, "pruned").to_dict("records")
    assert (row["rounds"], row["gbit"], row["gbit_up"]) == (5, 1.5, 0.6)
    assert (row["accuracy"], row["alive"], row["clients"]) == (0.7, 0.05, 0.6)
    (row,) = run.records(ended).to_dict("records")
    assert (row["accuracy"], row["alive"], row["commit"]) == (0.9, 1.0, "abc")


def test_a_last_round_leaves_four_fifths_to_the_common_model(tmp_path, monkeypatch):
    """At density .05 top-k had 50 rounds: 40 before the last one, 10 of a try."""
    monkeypatch.setattr(run, "RESULTS", tmp_path)
    rows = [("topk", 0.05, 25), ("topk", 0.05, 50), ("topk", 0.2, 70)]
    rows = pd.DataFrame(rows, columns=["method", "density", "rounds"])
    run._write(rows, "fashion")
    method = rules.finetuned("fashion", "topk")
    task = run.Task("fashion", "topk_finetuned", method, tmp_path)
    settings = {RATE: 0.1, "finetune.scale": 0.3, "finetune.epochs": 5}
    for share, rounds in ((1.0, 40), (0.25, 10)):
        config = run._config(task, settings, density=0.05, share=share)
        assert config.first_stage.num_rounds == rounds


def test_the_long_budget_takes_the_leaders_and_their_settings(tmp_path, monkeypatch):
    """By their best scores at the whole budget; common methods of the table alone.

    The settings are those of the last share; a try that diverged has no score.
    """
    monkeypatch.setattr(run, "RESULTS", tmp_path)
    tries = [
        ("pdst", 0.25, '{"a": 1}', 0.9),
        ("pdst", 1.0, '{"a": 2}', 0.7),
        ("pdst", 1.0, '{"a": 3}', 0.8),
        ("spdst", 0.25, '{"a": 4}', 0.99),
        ("spdst", 1.0, '{"a": 4}', 0.6),
        ("jmwst", 1.0, '{"a": 5}', 0.9),
        ("stc", 1.0, '{"a": 5}', None),
        ("fedavg", 1.0, '{"a": 5}', 0.95),
        ("fedavg_pruned", 1.0, '{"a": 5}', 0.95),
        ("spafl", 1.0, '{"a": 5}', 0.99),
        ("mine", 1.0, '{"a": 5}', 0.99),
    ]
    tries = pd.DataFrame(tries, columns=["method", "share", "settings", "score"])
    run._write(tries, "fashion_tries")
    assert run.leaders("fashion") == ["jmwst", "pdst", "spdst"]
    assert run.leaders("fashion", 2) == ["jmwst", "pdst"]
    task = run.Task("fashion_long", "pdst", rules.METHODS["fashion"]["pdst"], tmp_path)
    assert run.tune(task) == {"a": 3}
    with pytest.raises(ValueError, match="stc has no settings, expected tries that"):
        run.best(tries, "stc")


def test_an_entry_has_the_samples_of_the_records(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "RESULTS", tmp_path)
    old = pd.DataFrame([{"method": "fedavg", "seed": 0, "density": 1.0, "data": "0a"}])
    run._write(old, "fashion")
    new = pd.DataFrame([dict.fromkeys(run.RECORDS) | {"data": "0b"}], index=[7])
    monkeypatch.setattr(run, "records", lambda *_: new)
    monkeypatch.setattr(run, "_run", lambda task, configs: [{0: "run"}] * len(configs))
    method = Method(name="pdst", personal=True)
    task = run.Task("fashion", "mine", method, tmp_path)
    with pytest.raises(ValueError, match="checksum 0b on seed 0, expected 0a"):
        run.evaluate(task, {RATE: 0.1})
    run._write(old.assign(data="0b"), "fashion")
    for _ in range(2):  # the second time nothing is left to run
        run.evaluate(task, {RATE: 0.1})
        rows = run.read_records("fashion")
        assert list(rows["density"]) == [1.0, 0.2, 0.05]
        assert list(rows["personal"][1:]) == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "name"),
    [(workload, name) for workload, names in rules.METHODS.items() for name in names],
)
def test_all_configurations_are_valid(workload, name):
    method = rules.METHODS[workload][name]
    tried = rules.tries(method, 8)
    for settings in [*tried, *(s for t in tried for s in rules.beyond(t, method, 8))]:
        density = 0.05 if method.density else None
        config = configured(name, settings, workload, density=density)
        fields.check(config)
        plain = values(config)
        clients = config.num_clients or 100
        system = build.build_system(plain, clients)
        budgets = build.build_budgets(plain, system)
        build.build_stages(plain, network(plain.model["name"]), budgets, system)


ENTRY = "from benchmarks.v1.rules import Method\nMETHODS = {'%s': Method()}\n"
WRONG = [
    (["--entry=pdst.py"], "--entry has ['pdst'], expected new names"),
    (["--entry=path.py"], "a point '../mine' of 1 seeds, expected a name"),
    (["--entry=absent.py"], "--entry=absent.py: there is no such file"),
    (["min", "--entry=mine.py"], "method='min' (did you mean 'mine'?)"),
    (["pdts"], "method='pdts' (did you mean 'pdst'?)"),
    (["mine.py"], "method='mine.py'"),
    (["--finetune", "fedavgg"], "--finetune='fedavgg' (did you mean 'fedavg'?)"),
    (["--finetune", "spdst"], "spdst has a first stage"),
]


@pytest.mark.parametrize("arguments, said", WRONG, ids=str)
def test_a_wrong_command_is_told_in_a_line(tmp_path, monkeypatch, arguments, said):
    for file, name in (("pdst", "pdst"), ("path", "../mine"), ("mine", "mine")):
        (tmp_path / f"{file}.py").write_text(ENTRY % name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["run", "fashion", *arguments])
    with pytest.raises(SystemExit) as ended:
        run.main()
    line = str(ended.value.code)
    assert line.startswith("error: ") and said in line and "\n" not in line


@pytest.mark.slow
def test_a_stopped_run_goes_on_from_the_results(tmp_path, monkeypatch):
    """An entry of one's own, small: tries, the best again, two densities, two seeds."""
    small = rules.WORKLOADS["fashion"]._replace(
        fields=rules.WORKLOADS["fashion"].fields
        | {"dataset": "fashion_mnist_sample", "num_clients": 20, "cohort_size": 4},
        **{"gbit": 0.1, "dense": 3, "most": 4, "seeds": 2, "tries": 3},
    )
    monkeypatch.setitem(rules.WORKLOADS, "fashion", small)
    monkeypatch.setattr(run, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(run, "JOBS", 1)
    task = run.Task("fashion", "mine", Method(name="pdst"), tmp_path / "runs")
    run.evaluate(task, run.tune(task))
    tries, rows = run.read_tries("fashion"), run.read_records("fashion")
    assert (tries["share"] == 0.25).sum() == 3
    assert (tries["share"] == 1.0).sum() in (2, 3)  # one more at an edge
    assert set(rows["density"]) == {0.05, 0.2} and set(rows["seed"]) == {0, 1}
    assert rows["gbit"].max() <= 0.1 * 1.05 and rows["accuracy"].between(0, 1).all()
    assert json.loads(tries["settings"][0]).keys() == {RATE, MOMENTUM}
    monkeypatch.setattr(run.runner, "run", None)  # nothing is left to run
    run.evaluate(task, run.tune(task))
    assert len(run.read_records("fashion")) == len(rows)
