"""Several processes or devices give what one gives.

If one process refuses, fails or is left alone, each ends with one line.
"""

import json
import signal

import jax
import numpy as np
import pytest

from sparsefl_jax.runs import checkpoint, experiment
from sparsefl_jax.system import membership
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


@pytest.mark.parametrize("name", ["spafl", "nst"])
def test_two_processes_give_what_one_gives(name, tmp_path, monkeypatch):
    stores = "device", "host", "disk"
    config = configurations(tmp_path)[name]
    # SpaFL's second round reaches what the run may cost: three clients take 60 x 32
    # bits a round, and 180 x 32 when first drawn, so the first round costs 3 x 7680
    # bits and two at least 3 x 7680 + 3 x 1920.
    config.num_rounds = config.eval_every = 3
    if name == "spafl":
        config.until.gbit, rounds, by = 28e-6, 2, "gbit"
    else:
        rounds, by = 1 + 3, "rounds"
    for config.client_store in stores:
        wrote(config, tmp_path / config.client_store)
    start = ["-c", DRIVER, free_port()]
    begun = begin_all([*start, index, tmp_path, *stores] for index in (0, 1))
    monkeypatch.setattr("sparsefl_jax.runs.records.draw", lambda path: None)
    experiment.run(config, tmp_path / "one", progress=False)
    codes, errors = ended(begun)
    assert codes == [0, 0], "\n".join(errors)
    for store in stores:
        assert close(records(tmp_path / "one"), records(tmp_path / f"{store}_two"))
        summaries = [
            json.loads((tmp_path / f"{store}_{i}.json").read_text()) for i in (0, 1)
        ]
        assert summaries[0] == summaries[1] and summaries[0]["device"].startswith("2 x")
        assert (summaries[0]["ended_by"], summaries[0]["rounds"]) == (by, rounds)
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
from sparsefl_jax.simulation import initial_state, placement, round_program
from tests.simulation.store_test import METHODS, make_world

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
        start = initial_state.initial_model(key, model)
        state = initial_state.start(key, plan, start, population.info)
        ids = cohorts.cohorts(key, stage, 24, rounds)
        arguments = key, population, state, rounds, ids
        run = jax.jit(round_program.make_segment(plan), donate_argnums=2)
        run = run.lower(*arguments).compile()
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
    if dies:  # with process 0 goes JAX's service, whose client aborts
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
    "arguments, said",
    [
        (("here", 2, 0), "coordinator='here', expected host:port"),
        (("here:12", 2, 0, 0.0), "wait_minutes=0.0, expected above 0"),
    ],
)
def test_start_refuses(arguments, said):
    with pytest.raises(ValueError, match=said):
        membership.start(*arguments)


HERE = ["--coordinator=localhost:{port}", "--processes=2", "--process_id=0"]
ALONE = [
    (["--distributed"], "found no launcher of several processes"),
    ([*HERE, "--wait_minutes=.02"], "the other processes have not come at localhost:"),
    (["--wait_minutes=3"], "--wait_minutes=3 is read in several processes alone"),
]


@pytest.mark.parametrize("flags, said", ALONE)
def test_who_is_alone_says_so_in_one_line(flags, said):
    flags = [flag.format(port=free_port()) for flag in flags]
    run = ["--config=configs/flash_mnist.py:mini", "--dry_run"]
    (code,), (error,) = ended(begin_all([["launch.py", *run, *flags]]))
    assert code == 2 and error.startswith(f"error: {said}")
    assert len(error.splitlines()) == 1


# Two processes, of which one fails and the other waits for it.
PARTING = """
import sys
from sparsefl_jax.system import membership, processes

port, index, fails = map(int, sys.argv[1:])
membership.start(f"localhost:{port}", 2, index)
if index == fails:
    membership.leave("error: no such thing", 2)
processes.most(index)
"""


@pytest.mark.parametrize("fails", [0, 1])
def test_one_that_fails_ends_the_other(fails):
    port = free_port()
    begun = begin_all(["-c", PARTING, port, i, fails] for i in (0, 1))
    codes, errors = ended(begun)
    lines = [
        [line for line in error.splitlines() if not line.startswith("[Gloo]")]
        for error in errors
    ]
    assert lines[fails] == ["error: no such thing"] and codes[fails] == 2
    assert codes[1 - fails] not in (0, 2)
    if fails:  # otherwise JAX says so
        said = "error: another process of this run has ended; its output says why"
        assert lines[0] == [said] and codes[0] == 1
