"""Counts the words of the documentation, as its limits have them.

    python scripts/words.py        # each page of the site, and the totals

Prose is what stands outside tables, code and comments; of notebooks it is their text.
The generated API is left out.
"""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = ("docs", "examples")  # the notebooks of the site
NOT_TEXT = re.compile(r"^(`{3,}|~{3,}).*?^\1\s*?$|<!--.*?-->", re.MULTILINE | re.DOTALL)
DIRECTIVE = re.compile(
    r"^(`{3,})\{(figure|glossary|note|warning|tip|image)\}[^\n]*\n(.*?)^\1\s*?$",
    re.M | re.S,
)


def read(path: Path) -> str:
    """Returns the Markdown of a page, or of the text cells of a notebook."""
    if path.suffix == ".md":
        return path.read_text()
    cells = json.loads(path.read_text())["cells"]
    found = ("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return "\n\n".join(found)


def count(text: str) -> tuple[int, int]:
    r"""Counts the words of a page's prose, and those of its tables.

    Example:
      >>> count("One two.\\n\\n| three |\\n| --- |\\n```sh\\nfour\\n```\\n")
      (2, 1)
    """
    text = DIRECTIVE.sub(lambda found: found[3], text)  # a figure's caption is read
    lines = NOT_TEXT.sub("", text).splitlines()
    table = [line for line in lines if line.lstrip().startswith("|")]
    prose = [line for line in lines if not line.lstrip().startswith(("|", ":"))]
    return _words(prose), _words(table)


def _words(lines: list[str]) -> int:
    return sum(bool(re.search(r"\w", word)) for line in lines for word in line.split())


def main() -> None:
    """Prints a line for each page, the longest first, and the totals."""
    found = (page for part in PARTS for page in (ROOT / part).rglob("*"))
    pages = [p for p in found if p.suffix in (".md", ".ipynb")]
    pages = [p for p in pages if not {"api", ".ipynb_checkpoints"} & set(p.parts)]
    counts = {str(p.relative_to(ROOT)): count(read(p)) for p in pages}
    for name, (prose, tables) in sorted(counts.items(), key=lambda c: -c[1][0]):
        print(f"{prose:6} {tables:6}  {name}")
    prose, tables = map(sum, zip(*counts.values(), strict=True))
    print(
        f"{prose:6} {tables:6}  words of prose and of tables, {prose + tables} in all"
    )


if __name__ == "__main__":
    main()
