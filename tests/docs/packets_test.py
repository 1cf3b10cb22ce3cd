"""The page of packets and laws has a line for each field, code and law."""

import dataclasses
import re
from pathlib import Path

import sparsefl_jax as sfl
from sparsefl_jax.testing import laws
from sparsefl_jax.wire.positions import POSITIONS

PAGE = Path(__file__).parents[2] / "docs/reference/packets.md"


def test_the_tables_are_complete():
    fields = [field.name for field in dataclasses.fields(sfl.Packet)]
    wanted = {
        "| field | meaning |": fields,
        "| `index` | bits of an array |": list(POSITIONS),
        "| law | catches |": list(laws.LAWS),
    }
    for head, names in wanted.items():
        table = PAGE.read_text().partition(head)[2].partition("\n\n")[0]
        assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.M)) == sorted(names)
