"""The documentation stays within its limits, and its words are counted as it says."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_counts_prose_and_tables_apart():
    spec = importlib.util.spec_from_file_location("words", ROOT / "scripts/words.py")
    words = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(words)
    page = """# A title

Five words, and *a* `name`.
:class: not text

| head | 1 |
| --- | --- |

```sh
not counted
```

```{figure} a.svg
:alt: not read

A caption.
```
<!-- nor
this -->
"""
    assert words.count(page) == (2 + 5 + 2, 2)
