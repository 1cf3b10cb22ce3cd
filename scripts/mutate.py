"""Breaks the code in one place at a time and counts how often a test notices.

python scripts/mutate.py [--mutants 300] [--seed 19] [--until 22:40] [--again]

Each mutant is the code with one operator, number, branch or statement changed. The
script draws the mutants with a seed, writes each into a temporary copy of the last
commit and runs the tests that own the module (`OWNERS`) there. One line per mutant goes
to `mutants.jsonl`; a mutant that is in the log already is not run again, so that the
script can be stopped and started anew. With `--again` the survivors are run again, on
the tests as they are now. A mutant dies when a test fails or takes too long.
"""

import argparse
import json
import os
import random
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
runpy.run_path(str(ROOT / "tests" / "conftest.py"))  # imports JAX as the tests do

# Imported once; each mutant's child process has them and lacks only `sparsefl_jax`.
import chex  # noqa: E402, F401
import flax.linen  # noqa: E402, F401
import hypothesis  # noqa: E402, F401
import ml_collections  # noqa: E402, F401
import optax  # noqa: E402, F401
import pytest  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
from mutate_syntax import count_mutants, mutate  # noqa: E402

SECONDS = 150  # for the tests of one mutant; more counts as a hang

# What is mutated -> its test files, fastest first, and rows of `contract_test.py`. The
# longest name that begins a file's path counts; {} is the module's own name.
OWNERS = {
    "algorithms/": "{} [{}]",
    "algorithms/__init__": "imports",
    "algorithms/compressed": "compressed [compressed]",
    "algorithms/fedavg": "[fedavg]",
    "algorithms/fedsparsify": "fedsparsify [fedsparsify_global] [fedsparsify_local]",
    "algorithms/flash/": "flash work [spdst] [nst]",
    "algorithms/flash/hetero": "flash_server flash [hetero_jmwst] [hetero_spdst]",
    "algorithms/flash/joint": "flash_server [jmwst] [nst]",
    "algorithms/flash/sensitivity": "flash flash_server [sensitivity]",
    "algorithms/masked": "flash snip [spdst]",
    "algorithms/prunefl/": "prunefl [prunefl] [prunefl_initial]",
    "algorithms/spafl/": "spafl spafl_options [spafl]",
    "algorithms/spafl/local_only": "spafl [local_only]",
    "simulation/placement": "simulate store",
    "simulation/round_program": "simulate clock",
    "sparsity/": "{}",
    "sparsity/filters": "pqsu",
    "sparsity/layer_densities": "allocate",
    "sparsity/n_of_m": "allocate",
    "sparsity/one_bit": "fedmrn fedbat",
    "sparsity/quantization": "quantize",
    "sparsity/schedules": "fedsparsify",
    "sparsity/straight_through": "spafl fedpm",
    "sparsity/supermask": "fedpm",
    "sparsity/width": "slice heterofl",
    "training/means": "aggregate",
    "training/through": "fedmrn fedbat",
    "wire/charges": "codec costs elias",
    "wire/compressors": "compressors compressed",
    "wire/ledger": "costs",
    "wire/packets": "codec costs",
    "wire/positions": "codec",
    "wire/values": "codec elias",
}


def draw(folder: Path, mutants: int, seed: int) -> list[tuple[str, int]]:
    """Draws (file, number of the mutant in it), uniformly over the code."""
    found = set()
    for path in folder.rglob("*.py"):
        file = str(path.relative_to(folder))
        if file.startswith(tuple(OWNERS)):
            found |= {(file, n) for n in range(count_mutants(path.read_text()))}
    return random.Random(seed).sample(sorted(found), mutants)


def tests_of(file: str) -> list[str]:
    """Returns the tests that own a module, as pytest's arguments."""
    owner = max((o for o in OWNERS if file.startswith(o)), key=len)
    contract = "tests/contract_test.py::test_method"
    words = OWNERS[owner].format(*[Path(file).stem] * 2).split()
    if file.startswith("algorithms/"):
        words.insert(0, "factories")  # refusals and defaults of all methods
    return [contract + w if w[0] == "[" else f"tests/{w}_test.py" for w in words]


def run_tests(copy: str, tests: list[str]) -> tuple[str, str]:
    """Runs tests in a child of this process; returns the result and what failed."""
    output = Path(copy) / "output.txt"
    child = os.fork()
    if not child:
        os.setsid()
        os.chdir(copy)
        sys.path.insert(0, copy)
        log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--tb=line"]
        code = pytest.main([*options, *tests])
        sys.stdout.flush()
        os._exit(code)
    end = time.monotonic() + SECONDS
    while not (done := os.waitpid(child, os.WNOHANG))[0]:
        time.sleep(0.05)
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "slow", ""
    if os.waitstatus_to_exitcode(done[1]) in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
        return "passed", ""
    lines = output.read_text(errors="replace").strip().splitlines() or [""]
    named = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return "failed", (named or lines[-1:])[0][:160]


def main() -> None:
    """Runs the mutants that the log lacks, then prints how many died."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=int, default=300)
    parser.add_argument("--seed", type=int, default=19)
    parser.add_argument("--until", default="24:00", help="start none after (UTC)")
    parser.add_argument("--log", type=Path, default=Path("mutants.jsonl"))
    parser.add_argument("--again", action="store_true", help="also what survived")
    args = parser.parse_args()
    sys.dont_write_bytecode = True  # a file's mutants may have the same time and size
    lines = args.log.read_text().splitlines() if args.log.exists() else []
    entries = [json.loads(line) for line in lines]
    log = {(entry["file"], entry["number"]): entry for entry in entries}
    with tempfile.TemporaryDirectory() as copy:
        archive = ["git", "-C", str(ROOT), "archive", "HEAD"]
        tar = subprocess.run(archive, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", copy], input=tar, check=True)
        package = Path(copy) / "sparsefl_jax"
        for file, number in draw(package, args.mutants, args.seed):
            if time.strftime("%H:%M", time.gmtime()) >= args.until:
                break
            past = log.get((file, number), {"result": ""})["result"]
            if past and not (args.again and past == "passed"):
                continue
            source = (package / file).read_text()
            mutant, said = mutate(source, number)
            (package / file).write_text(mutant)
            result, by = run_tests(copy, tests_of(file))
            (package / file).write_text(source)
            entry = {"file": file, "number": number, "change": said}
            log[file, number] = entry | {"result": result, "by": by}
            with args.log.open("a") as out:
                print(json.dumps(log[file, number]), file=out)
            print(f"{len(log)} {result}: {file}:{said}", flush=True)
    died = sum(entry["result"] != "passed" for entry in log.values())
    print(f"{died} of {len(log)} mutants died ({100 * died / max(len(log), 1):.1f} %)")


if __name__ == "__main__":
    main()
