"""The site builds without warnings, and the code of its pages and the README runs."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sparsefl_jax as sfl
from benchmarks import __main__ as benchmarks
from benchmarks import pages as tables
from tests.networks import mostly_slow
from tests.refusals import ROOT, given

README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
METHOD_PAGE = ROOT / "docs/write_a_method.md"
TEMPLATE = re.compile(r"<!-- template -->\n```python\n(.*?)```\n<!-- end -->", re.S)
FENCED = re.compile(r"^(```+)([\w{}-]*)[^\n]*\n(.*?)^\1$", re.S | re.M)
# Runs, and all laws.
SLOW = ("quickstart.md", "slow_clients.md", "write_a_method.md")
SLOW += tuple(f"how_to/{name}.md" for name in ("export", "optimizers", "run", "seeds"))
SLOW += ("how_to/texts.md", "how_to/tune.md")


def blocks(page: Path, *languages: str) -> list[str]:
    """Returns the fenced blocks of a page in these languages."""
    found = FENCED.findall(page.read_text())
    return [text for _, language, text in found if language in languages]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT / "docs"))


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("myst_nb", reason="needs the extra [docs]")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-n"]
    command += ["-d", str(tmp_path / "trees"), "docs", str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    reference = (tmp_path / "site" / "api" / "method_authors.html").read_text()
    assert 'id="sparsefl_jax.Packet"' in reference  # docstrings are there
    assert "until.pflop" in (tmp_path / "site/reference/fields.html").read_text()


MEASURED = sorted(p.stem for p in (ROOT / "benchmarks/tables").glob("*_*.json"))


@pytest.mark.parametrize("table", MEASURED)
def test_the_page_of_a_paper_shows_what_was_measured(table):
    """A summary names the versions that ran, and the density of each model."""
    entries = list(tables.results(table).values())
    assert all(map(tables.valid, entries))
    drawn = tables.markdown(tables.declared(table), entries)
    marked = f"<!-- table {table} -->\n{drawn}\n<!-- end -->"
    assert marked in tables.page(table).read_text()


def test_every_table_of_a_paper_has_its_place():
    """A table with results its own, all others one list; what is listed is as drawn."""
    index = (ROOT / "docs/reproduction/index.md").read_text()
    assert f"<!-- table overview -->\n{tables.overview()}\n<!-- end -->" in index
    for paper in tables.PAPERS:
        text = (ROOT / f"docs/reproduction/{paper}.md").read_text()
        listed = tables.not_run(paper)
        assert f"<!-- table {paper}_not_run -->\n{listed}\n<!-- end -->" in text


def test_every_file_and_function_that_a_page_names_is_there():
    """Written as `file.py` or `file.py::function`, below the package or the root."""
    named = [
        (page, *found)
        for page in PAGES
        for found in re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", page.read_text())
    ]
    assert len(named) > 30
    for page, file, function in named:
        if file == "my_module.py":  # the reader's own
            continue
        paths = [p for p in (ROOT / "sparsefl_jax" / file, ROOT / file) if p.exists()]
        assert paths, f"{page.name}: no {file}"
        if function:
            text = paths[0].read_text()
            found = re.search(rf"^(def|class) {function}\b", text, re.M)
            assert found, (file, function)


CODE = [name_of(page) for page in PAGES if blocks(page, "python")]


@mostly_slow(CODE, quick={*CODE} - {*SLOW})
def test_the_code_of_a_page_runs(name, monkeypatch, tmp_path):
    """All of it in order."""
    page = ROOT / "docs" / name
    if "import optuna" in page.read_text():
        pytest.importorskip("optuna", reason="no dependency of this package")
    monkeypatch.chdir(tmp_path)  # a page may write files
    monkeypatch.setenv("SPARSEFL_CACHE_DIR", str(tmp_path / "cache"))
    code = blocks(page, "python")
    exec("\n".join(code), {"__name__": "page"})


@pytest.mark.parametrize("page", [README, METHOD_PAGE], ids=lambda p: p.name)
def test_the_method_of_a_page_learns_and_is_counted(page, key):
    names = {}
    exec(TEMPLATE.search(page.read_text())[1], names)
    x = np.random.default_rng(0).normal(size=(200, 5)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    data = sfl.from_arrays(x, y, x_test=x, y_test=y, num_clients=4)
    model = sfl.models.build("mlp", 2, (5,), widths=(4,))
    optimizer = sfl.training.make_optimizer(learning_rate=0.5)
    if page == README:
        method = names["top_tenth"](model, optimizer)
    else:
        method = names["random_mask"](model, optimizer, density=1.0)
    stage = sfl.Stage(method, num_rounds=2, cohort_size=4, epochs=4, batch_size=10)
    first, second, evaluated = sfl.run(key, [stage], model, data, eval_every=2).metrics
    assert evaluated["models"]["global"]["accuracy"] > 0.85
    # 28 weights and 6 biases in float32; of 28 weights the positions, in round 0 only,
    # or 3 of 34 values, and the counts of 20, 4, 8 and 2 entries in 5, 3, 4 and 2 bits.
    dense = 4 * 34 * 32
    if page == README:
        assert first["bits_down"] == second["bits_down"] == dense
        assert first["bits_up_values"] == second["bits_up_values"] == 4 * 3 * 32
        assert all(4 * 14 < r["bits_up_positions"] < 4 * 34 for r in (first, second))
    else:
        assert first["bits_up"] == second["bits_up"] == second["bits_down"] == dense
        assert first["bits_down"] == dense + 4 * 28


COMMAND = re.compile(r"^(?:\S*/)?python3? (?:-m (\S+)|(launch\.py))(.*)", re.M)
SHELL = ("", "sh")


def printed_commands():
    """Returns the command lines of pages, README and configurations."""
    texts = [block for p in [README, *PAGES] for block in blocks(p, *SHELL)]
    texts += [p.read_text() for p in (ROOT / "configs").glob("[!_]*.py")]
    lines = [m.groups() for text in texts for m in COMMAND.finditer(text)]
    lines = [(module or file, rest.partition("  #")) for module, file, rest in lines]
    return [(program, rest, says.strip()) for program, (rest, _, says) in lines]


LAUNCHES = [rest for program, rest, _ in printed_commands() if program == "launch.py"]


def test_every_printed_launch_command_is_understood(monkeypatch):
    program = (ROOT / "sparsefl_jax/launch.py").read_text()
    known = set(re.findall(r"DEFINE_\w+\(\s*\"(\w+)\"", program))
    assert len(LAUNCHES) > 30 and {"resume", "dry_run", "coordinator"} <= known
    known |= {"help"}  # of absl
    for arguments in map(shlex.split, LAUNCHES):
        if any("[" in argument for argument in arguments):
            continue  # a pattern with options
        assert arguments and all(a.startswith("--") for a in arguments), arguments
        fields = [a for a in arguments if re.match(r"--config[.=]", a)]
        options = {re.match(r"--(\w+)", a)[1] for a in arguments if a not in fields}
        assert options <= known, arguments
        if any(a.startswith("--config=") for a in arguments):
            assert given(monkeypatch, *fields).num_rounds > 0


def test_every_printed_module_takes_the_options_that_are_printed():
    printed = printed_commands()
    assert {"benchmarks.table", "sparsefl_jax.report"} <= {name for name, *_ in printed}
    for program, rest, _ in printed:
        path = ROOT / program.replace(".", "/")
        files = [path / "__main__.py", path.with_suffix(".py")]
        found = [file for file in files if file.exists()]
        if not program.startswith(("sparsefl_jax", "benchmarks", "examples")):
            continue
        assert found, program
        text = found[0].read_text()
        if "define_config(" in text:
            text += '"--config"'
        options = set(re.findall(r'"(--[\w-]+)"', text))
        if program == "benchmarks":
            usage = benchmarks.parser(rest.split()[0]).format_usage()
            options = set(re.findall(r"--[\w-]+", usage))
        assert set(re.findall(r"(--[\w-]+)", rest)) <= options, (program, rest)
