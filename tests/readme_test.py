"""The README's example and its command lines work as printed."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

from absl import flags
from ml_collections import config_flags

ROOT = Path(__file__).parent.parent


def test_the_example_runs_as_printed():
    text = (ROOT / "README.md").read_text()
    code = re.search(r"<!-- example -->\n```python\n(.*?)```", text, re.S).group(1)
    assert len(code.splitlines()) <= 20
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]
    accuracy, gbit = map(float, done.stdout.split())
    assert accuracy > 0.3 and gbit > 0


def test_every_printed_command_line_is_understood(monkeypatch):
    text = (ROOT / "README.md").read_text() + "".join(
        path.read_text() for path in (ROOT / "configs").glob("[!_]*.py")
    )
    lines = re.findall(r"launch\.py (--config=\S+(?: --\S+)*)", text)
    lines = [line for line in lines if "[" not in line]
    assert len(lines) >= 3
    for line in lines:
        argv = ["launch.py", *shlex.split(line)]
        monkeypatch.setattr(sys, "argv", argv)  # where it looks for overrides
        values = flags.FlagValues()
        config_flags.DEFINE_config_file("config", flag_values=values)
        flags.DEFINE_string("workdir", None, "", flag_values=values)
        flags.DEFINE_bool("dry_run", False, "", flag_values=values)
        values(argv)
        assert values["config"].value.num_rounds > 0
