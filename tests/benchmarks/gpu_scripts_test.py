"""The scripts for a GPU: all parts at toy sizes, and the tables' commands."""

import os
import subprocess
import sys
from pathlib import Path

from benchmarks import __main__ as benchmarks

FOLDER = Path(benchmarks.__file__).parent


def call(script, *arguments, **environment):
    """Runs a script without PyTorch beside it."""
    environment = os.environ | {"PYTHON": sys.executable} | environment
    command = ["sh", str(FOLDER / script), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


FAKE = """#!/bin/sh
# In the place of Python: notes a benchmark and its options; a peer fails at first.
[ "$1 $2" = "-m benchmarks" ] || exit 0
shift 2
printf '%s\\t' "$@" >> {ran}
echo >> {ran}
for out; do :; done
[ "$1" != peers.compare ] || [ -e {mended} ] || exit 1
echo "a table of $1" > "$out/$1.md"
"""


def test_a_part_that_fails_stops_nothing_and_is_run_again(tmp_path):
    ran, mended, fake = (tmp_path / name for name in ("ran", "mended", "python"))
    fake.write_text(FAKE.format(ran=ran, mended=mended))
    fake.chmod(0o755)
    given = {"OUT": str(tmp_path / "out"), "PYTHON": str(fake)}
    first = call("gpu.sh", **given)
    assert (first.returncode, first.stderr) == (1, "gpu.sh: failed: peers\n")
    assert "a table of throughput" in first.stdout
    commands = [line.split("\t")[:-1] for line in ran.read_text().splitlines()]
    for name, *options in commands:
        benchmarks.parser(name).parse_args(options)  # ends where one is not known
    parts = ["programs", "programs", "throughput", "peers.compare"]
    parts += 3 * ["throughput"] + 4 * ["programs"]
    assert [name for name, *_ in commands] == parts

    mended.touch()
    assert call("gpu.sh", **given).returncode == 0
    added = ran.read_text().splitlines()[len(parts) :]
    assert [line.split("\t")[0] for line in added] == ["peers.compare"]
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert len(names) == len(parts) and {"cohorts", "peers", "programs_pfl"} <= names
