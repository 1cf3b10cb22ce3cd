"""Two processes over gloo, and eight devices, give what one device gives."""

import json
import signal

import jax
import numpy as np
import pytest

from sparsefl_jax.runs import checkpoint, experiment
from tests.launches import (
    DRIVER,
    begin_all,
    close,
    configurations,
    ended,
    free_port,
    has_written,
    launched,
    records,
    wrote,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "name, stores",
    [
        ("spafl", ("device", "disk")),
        pytest.param("spafl", ("host",), marks=pytest.mark.slow),
        pytest.param("nst", ("device", "host", "disk"), marks=pytest.mark.slow),
    ],
)
def test_two_processes_give_what_one_gives(name, stores, tmp_path, monkeypatch):
    config = configurations(tmp_path)[name]
    # The second round of three that would be one segment reaches what it may cost: of
    # NST's, FedAvg takes 2 x 180 x 32 bits and a round at least 6 x 100 x 32.
    config.num_rounds = config.eval_every = 3
    config.until.gbit, rounds = {"spafl": (2 * 5760e-9, 2), "nst": (4e-5, 1 + 2)}[name]
    for config.client_store in stores:
        wrote(config, tmp_path / config.client_store)
    start = ["-c", DRIVER, free_port()]
    begun = begin_all([*start, index, tmp_path, *stores] for index in (0, 1))
    monkeypatch.setattr(experiment, "_draw", lambda path: None)
    experiment.run(config, tmp_path / "one", progress=False)
    codes, errors = ended(begun)
    assert codes == [0, 0], "\n".join(errors)
    for store in stores:
        assert close(records(tmp_path / "one"), records(tmp_path / f"{store}_two"))
        summaries = [
            json.loads((tmp_path / f"{store}_{i}.json").read_text()) for i in (0, 1)
        ]
        assert summaries[0] == summaries[1] and summaries[0]["device"].startswith("2 x")
        assert (summaries[0]["ended_by"], summaries[0]["rounds"]) == ("gbit", rounds)
        saved = [checkpoint.read(tmp_path / each) for each in ("one", f"{store}_two")]
        assert close(*(jax.tree.map(np.ndarray.tolist, s.models) for s in saved))


@pytest.mark.parametrize("store", ["device", "host", "disk"])
def test_interrupted_by_one_and_resumed_by_both(store, tmp_path):
    config = configurations(tmp_path)["nst"]
    config.num_rounds, config.client_store = 60, store
    experiment.run(config, tmp_path / "one", progress=False)
    wrote(config, tmp_path / "two")
    begun = launched(tmp_path / "two")
    has_written(begun, tmp_path / "two")
    begun[1].send_signal(signal.SIGINT)  # only one of them gets it
    codes, errors = ended(begun)
    assert codes == [130, 130], "\n".join(errors)
    assert "all saved" in errors[0] and "--resume" not in errors[1]
    before = len(records(tmp_path / "two"))
    assert 0 < before < len(records(tmp_path / "one"))
    codes, errors = ended(launched(tmp_path / "two"))
    assert codes == [0, 0] and "resuming after round" in errors[0], "\n".join(errors)
    assert close(records(tmp_path / "one"), records(tmp_path / "two"))


@pytest.mark.parametrize("dies", [0, 1])
def test_who_is_left_alone_ends(dies, tmp_path):
    config = configurations(tmp_path)["spafl"]
    config.num_rounds = 10_000
    wrote(config, tmp_path / "run")
    begun = launched(tmp_path / "run")
    has_written(begun, tmp_path / "run")
    begun[dies].kill()
    begun[1 - dies].wait(membership.HEARTBEAT + membership.SHUTDOWN)
    codes, errors = ended(begun)
    assert codes[1 - dies] not in (0, -signal.SIGKILL)
    if dies:  # with process 0 goes the service, whose client aborts
        assert codes[0] == 1 and "Traceback" not in errors[0]
        assert "error: another process of this run has ended" in errors[0]


def test_what_one_refuses_ends_both(tmp_path):
    config = configurations(tmp_path)["spafl"]
    for name, config.seed in (("a", 0), ("b", 1)):
        wrote(config, tmp_path / name)
    port = free_port()
    start = ["-c", DRIVER, port]
    codes, errors = ended(
        begin_all([*start, i, tmp_path, name] for i, name in enumerate("ab"))
    )
    assert 0 not in codes
    assert "the configuration of process 1 differs" in errors[0]


@pytest.mark.parametrize(
    "arguments, told",
    [
        (("here", 2, 0), "coordinator='here', .* expected all three: host:port"),
        ((":12", 2, 0), "coordinator=':12'"),
        (("here:12", None, 0), "processes=None"),
        (("here:12", 2, 2), "process_id=2, .* an integer from 0 to P - 1"),
        ((None, 2, 0), "coordinator=None"),
        (("here:12", 2, 0, 0.0), "wait_minutes=0.0, expected in .0, inf."),
    ],
)
def test_start_refuses(arguments, told):
    with pytest.raises(ValueError, match=told):
        membership.start(*arguments)


HERE = ["--coordinator=localhost:{port}", "--processes=2", "--process_id=0"]
ALONE = [
    (["--distributed"], "no launcher of several processes"),
    ([*HERE, "--wait_minutes=.02"], "the other processes have not come at localhost:"),
    (["--wait_minutes=3"], "--wait_minutes=3 is read in several processes alone"),
]


@pytest.mark.parametrize("flags, told", ALONE)
def test_who_is_alone_says_so_in_one_line(flags, told):
    flags = [flag.format(port=free_port()) for flag in flags]
    (code,), (error,) = ended(begin_all([["launch.py", "--list", *flags]]))
    assert code == 2 and error.startswith(f"error: {told}")
    assert len(error.splitlines()) == 1


# Two processes that compile the same twice; then one fails and the other waits for it.
PARTING = """
import sys
from pathlib import Path
import jax, numpy as np
from sparsefl_jax.system import membership, processes

port, index, fails, cache = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
jax.config.update("jax_compilation_cache_dir", cache)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
membership.start(f"localhost:{port}", 2, index)
hits = []
jax.monitoring.register_event_listener(
    lambda event, **_: hits.append(event) if event.endswith("/cache_hits") else None
)
for _ in range(2):
    jax.clear_caches()
    jax.jit(lambda x: x * 3 + 1)(np.ones(5, np.float32))
Path(cache, f"hits_{index}").write_text(str(len(hits)))
if index == fails:
    membership.leave("error: no such thing", 2)
processes.most(index)
"""


@pytest.mark.parametrize("fails", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_one_that_fails_ends_the_other_with_one_line(fails, tmp_path):
    port = free_port()
    begun = begin_all(["-c", PARTING, port, i, fails, tmp_path] for i in (0, 1))
    codes, errors = ended(begun)
    told = [
        [line for line in error.splitlines() if not line.startswith("[Gloo]")]
        for error in errors
    ]
    assert told[fails] == ["error: no such thing"] and codes[fails] == 2
    assert told[1 - fails] == [f"error: process {fails} has ended: no such thing"]
    assert codes[1 - fails] == 1
    for index in (0, 1):  # JAX alone would let process 0 keep what it compiled
        assert int((tmp_path / f"hits_{index}").read_text()) > 0


# Two processes with two devices each, of which one compiles longer than Gloo waits for
# those who meet for the first time.
LATE = """
import sys, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from sparsefl_jax.system import membership, processes

membership.start(f"localhost:{sys.argv[1]}", 2, int(sys.argv[2]))
mesh = Mesh(np.array(jax.devices()), ("clients",))
x = processes.put(np.arange(8, dtype=np.float32), NamedSharding(mesh, P("clients")))
add = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, P())).lower(x).compile()
time.sleep(35 * int(sys.argv[2]))
assert float(add(x).addressable_data(0)) == 28
"""


def test_one_may_compile_much_longer_than_the_other():
    port = free_port()
    begun = begin_all((["-c", LATE, port, i] for i in (0, 1)), devices=2)
    codes, errors = ended(begun)
    assert codes == [0, 0], "\n".join(errors)


# One round on one device and on eight; rows are sharded and never gathered.
EIGHT = r"""
import re
import jax
import numpy as np
import sparsefl_jax as sfl
from sparsefl_jax.data import cohorts
from sparsefl_jax.runs.plan import checks
from sparsefl_jax.simulation import initial_state, placement, round_program
from tests.store_test import METHODS, make_world

data, model, parts = make_world(24)
methods = METHODS | {"fedavg": sfl.fedavg}
key, rounds = jax.random.key(0), np.zeros(1, np.int32)
layers = jax.tree.map(lambda m: m > 0, model.macs)
assert len(jax.devices()) == 8
for name, method in methods.items():
    results = []
    for count in (1, 8):
        stage = sfl.Stage(method(*parts), 1, 11, batch_size=4)
        plan = placement.make_plan(stage, layers, jax.devices()[:count])
        population = placement.make_population(plan, data)
        start = checks.initial_model(key, model)
        state = initial_state.start(key, plan, start, population)
        ids = cohorts.cohorts(key, stage, 24, rounds)
        arguments = key, population, state, rounds, ids
        run = round_program.make_segment(plan).lower(*arguments).compile()
        state, log = run(*arguments)
        results.append(jax.device_get((state, log)))
        for leaf in jax.tree.leaves(state.clients):
            assert leaf.addressable_shards[0].data.shape[0] == 24 // count
    assert plan.mesh.size == 8
    assert not re.search(r"f32\[24,[^ ]* all-gather", run.as_text()), name
    for one, eight in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(one, eight, rtol=1e-6, atol=1e-6)
"""


def test_eight_devices_give_what_one_gives():
    codes, errors = ended(begin_all([["-c", EIGHT]], devices=8))
    assert codes == [0], errors[0]
