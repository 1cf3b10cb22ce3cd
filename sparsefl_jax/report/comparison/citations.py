"""Finds the papers of methods: entries of `methods.bib` whose keywords name them."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sparsefl_jax.report.comparison.groups import Group

_FILE = Path(__file__).with_name("methods.bib")


class Paper(NamedTuple):
    """An entry of `methods.bib`."""

    entry: str  # BibTeX
    methods: list[str]  # its keywords
    author: str  # "McMahan et al."
    title: str
    year: str


def papers(groups: Sequence[Group]) -> list[Paper]:
    """Returns the papers of the methods of runs, of their first stages too.

    Args:
      groups: as `read_groups` returned them.

    Returns:
      Each paper once, in the order of the file. Methods of one's own have none.
    """
    names = set()
    for group in groups:
        config = group.runs[0].config
        sections = [config.get(s) or {} for s in ("first_stage", "algorithm")]
        names.update(section.get("name") for section in sections)
        if (config.get("server_optimizer") or {}).get("name"):
            names.add("server_optimizer")
    return [paper for paper in entries() if names.intersection(paper.methods)]


def entries() -> list[Paper]:
    """Returns all entries of `methods.bib`.

    Example:
      >>> [paper.author for paper in entries() if "snip" in paper.methods]
      ['Lee et al.']
    """
    text = _FILE.read_text(encoding="utf-8")
    return list(map(_paper, re.findall(r"^@\w+\{.*?^\}", text, re.S | re.M)))


def _paper(entry: str) -> Paper:
    found = dict(re.findall(r"^ *(\w+) *= \{(.*)\},$", entry, re.M))
    authors = [_plain(name.split(",")[0]) for name in found["author"].split(" and ")]
    author = " and ".join(authors) if len(authors) < 3 else f"{authors[0]} et al."
    methods, title = found["keywords"].split(", "), _plain(found["title"])
    return Paper(entry, methods, author, title, found["year"])


def _plain(text: str) -> str:
    """Removes TeX's braces; the accents of the first authors are handled."""
    return re.sub(r"[{}]", "", text.replace(r"\'a", "á"))
