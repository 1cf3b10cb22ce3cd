"""The README's example runs as printed."""

import re
import subprocess
import sys
from pathlib import Path

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
