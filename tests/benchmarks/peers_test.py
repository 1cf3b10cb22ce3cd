"""The comparison with other simulators: rounds in turns, and equal ones."""

import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from benchmarks import measure, workload
from benchmarks.peers import compare, ours
from sparsefl_jax import export
from sparsefl_jax.studies import places
from tests.reference import transformer_by_hand as by_hand

pytestmark = pytest.mark.slow

TINY = workload.Workload("mlp", 8, 12, 4, widths=(4,), batch_size=8)

PEER = """
import sys
from benchmarks.peers.turns import Turns, setup
turns, name = Turns(), sys.argv[1]
print("noise of a library")
facts = {"steps": setup()["cohort"], "compile_seconds": 0.0}
turns.tell(version="1", parameters=int(sys.argv[2]), **facts)
while turns.wait():
    with open(sys.argv[3], "a") as ran:
        ran.write(name)
    turns.tell()
"""


def test_two_processes_run_rounds_in_turns(tmp_path, monkeypatch):
    """On a fake clock, rounds of a take 1 to 3 seconds, those of b 4, 8 and 15."""
    (tmp_path / "peer.py").write_text(PEER)
    command = [sys.executable, str(tmp_path / "peer.py")]
    ran = tmp_path / "ran"
    clock = iter(np.cumsum([0, 4, 0, 1, 0, 2, 0, 8, 0, 15, 0, 3]).tolist())
    with monkeypatch.context() as patch, (tmp_path / "log").open("w") as log:
        pair = [[*command, name, "7", str(ran)] for name in "ab"]
        patch.setattr(measure.time, "perf_counter", lambda: next(clock))
        told = compare.pair(*pair, TINY, 3, log)
    with (tmp_path / "log").open("a") as log:
        with pytest.raises(SystemExit, match="mlp has 7 and 8 parameters"):
            compare.pair(pair[0], [*command, "c", "8", str(ran)], TINY, 1, log)
        with pytest.raises(SystemExit, match="ended, see"):
            compare.pair(pair[0], [sys.executable, "-c", "1"], TINY, 1, log)
    assert ran.read_text() == "ab" + "ba" + "ab" + "ba"  # the first calls are not timed
    assert told == {
        "peer's version": "1",
        "ours, steps/s: best": 4 / 1,
        "ours, steps/s: median": 4 / 2,
        "peer, steps/s: best": 4 / 4,
        "peer, steps/s: median": 4 / 8,
        "ours / peer": 4,  # of 4 / 1, 8 / 2, 15 / 3
        "compile s": 0.0,
    }
    assert "noise" in (tmp_path / "log").read_text()


PEFT = """
import json, sys
from peft import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from benchmarks.peers import text
at, folder = json.loads(sys.argv[1]), sys.argv[2]
model = text.build(at)
before = load_file(f"{folder}/before/adapter_model.safetensors")
assert not set_peft_model_state_dict(model, before).unexpected_keys
one_round = text.make_round(at, model)
for _ in range(3):
    server = one_round()
trained = [w for w in model.parameters() if w.requires_grad]
for w, new in zip(trained, server, strict=True):
    w.detach().copy_(new)
save_file(get_peft_model_state_dict(model), f"{folder}/peft")
"""


@pytest.mark.skipif("PEER_PYTHON" not in os.environ, reason="needs the peers' Python")
def test_three_rounds_of_adapters_are_those_of_peft(tmp_path):
    """Of full batches and cohorts, so that both sides see the same samples."""
    rng, folder = np.random.default_rng(0), tmp_path / "bert"
    by_hand.write(folder, "bert", by_hand.tensors("bert", 2))
    x = np.where(np.arange(7) < [[4], [7], [2], [5]], rng.integers(1, 11, (4, 7)), 0)
    np.savez(tmp_path / "sentences.npz", x=np.int32(x), y=np.int32([0, 1, 1, 1]))
    setup = compare.SETUPS["text"]._replace(clients=2, samples=2, cohort=2)
    at = compare.told(setup._replace(batch_size=2)) | {"rank": 3, "shape": [7]}
    at |= {"encoder": str(folder), "sentences": str(tmp_path / "sentences.npz")}

    model, data = ours.text(at)
    one = workload.prepare(setup._replace(batch_size=2), model=model, data=data)
    state = one.start()
    random = jax.tree.map(  # B starts at 0, with which A would hardly move
        lambda v: np.float32(rng.normal(size=v.shape)), state.server.params
    )
    state = state._replace(server=state.server._replace(params=random))
    export.save_peft(tmp_path / "before", model, state.server.params, base=folder)
    for t in range(3):
        state, _ = one.step(state, t)
    export.save_peft(tmp_path / "after", model, state.server.params, base=folder)
    command = [os.environ["PEER_PYTHON"], "-c", PEFT, json.dumps(at), str(tmp_path)]
    subprocess.run(command, check=True, env=places.environment(), cwd=compare.ROOT)

    before, after = (
        load_file(tmp_path / name / "adapter_model.safetensors")
        for name in ("before", "after")
    )
    found = load_file(tmp_path / "peft")
    assert found.keys() == after.keys()
    moved = {name: np.abs(after[name] - before[name]).max() for name in after}
    for kind in ("lora_A", "lora_B", "pooler", "classifier"):
        assert max(v for name, v in moved.items() if kind in name) > 1e-4
    for name, want in after.items():
        np.testing.assert_allclose(found[name], want, atol=1e-6, err_msg=name)
