"""Finds the papers of methods: entries of `methods.bib` by the methods' names."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sparsefl_jax.report.comparison.groups import Group

_FLASH, _SPAFL = "babakniya2023revisiting", "kim2024spafl"
_FEDSPARSIFY, _PRUNEFL = "stripelis2022federated", "jiang2022model"
# The key of each method's paper. Methods of one's own have none.
PAPERS = {
    "complement": "jiang2023complement",
    "compressed": "sattler2020robust",
    "fedavg": "mcmahan2017communication",
    "feddst": "bibikar2022federated",
    "fedpm": "isik2023sparse",
    "fedprox": "li2020federated",
    "fedrts": "huang2025fedrts",
    "fedspa": "huang2022achieving",
    "fedtiny": "huang2023distributed",
    "fedsparsify_global": _FEDSPARSIFY,
    "fedsparsify_local": _FEDSPARSIFY,
    "fjord": "horvath2021fjord",
    "grasp": "wang2020picking",
    "hetero_jmwst": _FLASH,
    "hetero_spdst": _FLASH,
    "heterofl": "diao2021heterofl",
    "jmwst": _FLASH,
    "local_only": _SPAFL,
    "nst": _FLASH,
    "pdst": _FLASH,
    "pqsu": "xu2021accelerating",
    "prunefl": _PRUNEFL,
    "prunefl_initial": _PRUNEFL,
    "sensitivity": _FLASH,
    "snip": "lee2019snip",
    "spafl": _SPAFL,
    "sparsyfed": "guastella2025sparsyfed",
    "spdst": _FLASH,
    "zerofl": "qiu2022zerofl",
    "ssfl": "ohib2026ssfl",
}
SERVER_OPTIMIZERS = "reddi2021adaptive"


class Paper(NamedTuple):
    """An entry of `methods.bib`."""

    key: str
    entry: str  # BibTeX
    author: str  # "McMahan et al."
    title: str
    year: str


def papers(groups: Sequence[Group]) -> list[Paper]:
    """Returns the papers of the methods of runs, of their first stages too.

    Args:
      groups: as `read_groups` returned them.

    Returns:
      Each paper once, in the order of the methods.
    """
    keys = {}
    for group in groups:
        config = group.runs[0].config
        sections = [config.get(s) or {} for s in ("first_stage", "algorithm")]
        names = [section.get("name") for section in sections]
        keys |= dict.fromkeys(PAPERS[n] for n in names if n in PAPERS)
        if (config.get("server_optimizer") or {}).get("name"):
            keys[SERVER_OPTIMIZERS] = None
    known = entries()
    return [known[key] for key in keys]


def entries() -> dict[str, Paper]:
    """Returns all entries of `methods.bib` by key.

    Example:
      >>> entries()[PAPERS["snip"]].author
      'Lee et al.'
    """
    text = (Path(__file__).parent / "methods.bib").read_text(encoding="utf-8")
    found = re.finditer(r"^@\w+\{(\w+),\n.*?^\}", text, re.S | re.M)
    return {match[1]: _paper(match[1], match[0]) for match in found}


def _paper(key: str, entry: str) -> Paper:
    def field(name: str) -> str:
        (value,) = re.findall(rf"^ *{name} *= \{{(.*)\}},$", entry, re.M)
        return value

    authors = [_plain(name.split(",")[0]) for name in field("author").split(" and ")]
    author = " and ".join(authors) if len(authors) < 3 else f"{authors[0]} et al."
    return Paper(key, entry, author, _plain(field("title")), field("year"))


def _plain(text: str) -> str:
    """Removes TeX's braces; the accents of the first authors are handled."""
    return re.sub(r"[{}]", "", text.replace(r"\'a", "á"))
