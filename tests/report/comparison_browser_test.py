"""How headless Chromium shows the page of a comparison."""

import html
import json
import re
import shutil
import subprocess

import pytest

from tests.report.comparison_page_test import study, write_comparison

PROBE = """
const errors = [], found = {};
window.addEventListener("error", (event) => errors.push(event.message));
"""
SORT = """
const table = document.querySelector("table.sortable");
const first = (row) => row.cells[0].innerText.trim();
const order = () => [...table.tBodies[0].rows].map(first);
const heads = [...table.tHead.rows[0].cells];
const head = heads.find((cell) => cell.innerText.startsWith("last"));
found.before = order();
head.querySelector("button").click();
found.down = order();
found.said = head.getAttribute("aria-sort");
head.querySelector("button").click();
found.up = order();
heads[0].querySelector("button").click();
found.names = order();
found.sorts = heads.map((cell) => cell.getAttribute("aria-sort"));
const panel = (i) => getComputedStyle(document.getElementById(`panel-${i}`)).display;
found.panels = [panel(0), panel(1)];
document.querySelector("label[for=axis-1]").click();
found.panels.push(panel(0), panel(1));
"""
FIT = """
for (const input of document.querySelectorAll("details")) input.open = true;
const inside = (element) => element.closest(".scroll, pre, svg");
found.wide = [...document.querySelectorAll("body *")]
  .filter((element) => !inside(element))
  .filter((element) => element.getBoundingClientRect().right > innerWidth + 0.5)
  .map((element) => element.outerHTML.slice(0, 80));
found.scroll = document.documentElement.scrollWidth;
found.inner = innerWidth;
found.errors = errors;
parent.document.body.insertAdjacentHTML("beforeend", "<pre id=found></pre>");
parent.document.getElementById("found").textContent = JSON.stringify(found);
"""


def in_a_browser(page, folder, width, script=""):
    """Shows a page in a frame, as headless windows cannot be as narrow as a phone.

    Returns what `script` and FIT found.
    """
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if not browser:
        pytest.skip("needs chromium")
    page = page.replace("<head>", f"<head><script>{PROBE}</script>", 1)
    page = page.replace("</body>", f"<script>{script}{FIT}</script></body>")
    frame = html.escape(page, quote=True)
    outer = folder / "outer.html"
    outer.write_text(
        '<!DOCTYPE html><meta charset="utf-8"><body>'
        f'<iframe width="{width}" height="900" srcdoc="{frame}"></iframe></body>'
    )
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu"]
    command += ["--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}"]
    command += ["--window-size=1400,1000", "--virtual-time-budget=5000", "--dump-dom"]
    done = subprocess.run(
        [*command, outer.as_uri()], capture_output=True, text=True, timeout=120
    )
    assert "CONSOLE" not in done.stderr, done.stderr[-3000:]
    text = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)[1]
    found = json.loads(html.unescape(text))
    assert found["errors"] == [] and found["wide"] == []
    assert found["scroll"] <= found["inner"] <= width
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("width", [360, 1200])
def test_in_a_browser(tmp_path, width):
    write_comparison(study(tmp_path), tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    found = in_a_browser(page, tmp_path, width, SORT)
    dense, s10, s05, own = found["before"]
    assert found["down"] == [dense, s10, s05, own] and found["said"] == "descending"
    assert found["up"] == [own, s05, s10, dense]
    assert found["names"] == [dense, own, s05, s10]
    assert found["sorts"][0] == "ascending" and set(found["sorts"][1:]) == {"none"}
    assert found["panels"] == ["block", "none", "none", "block"]
