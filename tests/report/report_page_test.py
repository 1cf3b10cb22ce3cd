import json
import re
from html.parser import HTMLParser

import pytest

from sparsefl_jax.report import plot_run, write_page
from tests.report.report_test import SUMMARY, records, write_run

EVIL = "<script>alert('&')</script>"


class Page(HTMLParser):
    """Collects tags, attributes and the rows of tables."""

    VOID = ("meta", "img", "br", "link", "input")

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.rows, self.links, self.text = [], [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [v for k, v in attributes if k in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def test_the_page_stands_alone_and_holds_everything(tmp_path):
    run = write_run(tmp_path / "a_run", records(stages=(2, 1)))
    drawn = plot_run(run)
    path = write_page(run)
    page = Page(path.read_text())
    assert path == run / "report.html" and page.open == []
    assert page.tags.count("figure") == page.tags.count("img") == len(drawn) == 6
    assert all(link.startswith(("data:", "#")) for link in page.links)
    assert not {"script", "iframe"} & set(page.tags)
    assert not re.search(r"https?://|url\([^#]|@import", path.read_text())
    flat = [" ".join(row) for row in page.rows]
    assert "aggregated 87.20 % 88.00 % 55" in flat
    both = "3.00 Gbit 4.00 Gbit 6.00 Gbit 1.00 Gbit 4.00 T 16.0 T 18.0 T"
    assert f"total 60 {both}" in flat


def test_text_is_escaped(tmp_path):
    summary = SUMMARY | {"method": EVIL, "commit": EVIL}
    summary["accuracy"] = {EVIL: SUMMARY["accuracy"]["masked"]}
    summary["stages"] = [s | {"name": EVIL} for s in SUMMARY["stages"]]
    run = write_run(tmp_path / "a & <b>", records(stages=(2, 1)), summary=summary)
    config = {EVIL: {EVIL: EVIL}, "list": [EVIL]}
    (run / "config.json").write_text(json.dumps(config))
    page = Page(write_page(run).read_text())
    assert "script" not in page.tags and page.open == []
    assert page.text.count(EVIL) >= 10 and "a & <b>" in page.text


@pytest.mark.parametrize("lines", [[], list(records(stages=(3,)))])
def test_a_run_that_has_not_ended_has_a_page(tmp_path, lines):
    run = write_run(tmp_path, lines, summary=None)
    page = Page(write_page(run).read_text())
    assert "This run has not ended" in page.text and "None" not in page.text
    assert ("traffic, both ways" in page.text) == bool(lines)
