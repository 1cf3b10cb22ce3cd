"""Foreign, old and damaged files of a run: each is named in one line."""

import contextlib
import io
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import sparsefl_jax as sfl
from sparsefl_jax.export import __main__ as export_main
from sparsefl_jax.report import __main__ as report_main
from sparsefl_jax.runs import checkpoint, experiment, records
from sparsefl_jax.runs import folder as run_folder
from sparsefl_jax.runs.checkpoint import Snapshot
from sparsefl_jax.simulation import placement
from sparsefl_jax.system import files
from tests.tiny import tiny_config

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Runs a method that leaves all that is read: personal models and masks."""
    folder = tmp_path_factory.mktemp("finished")
    config = tiny_config(folder)
    config.algorithm, config.num_rounds = {"name": "spafl", "alpha": 0.1}, 2
    config.first_stage = {}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(records, "draw", lambda path: None)  # plots take seconds
        experiment.run(config, folder / "run", progress=False)
    return folder / "run"


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    """Makes figures, which may fail, but does not draw them, which takes seconds."""
    empty = '<svg viewBox="0 0 1 1"></svg>'

    def write(self, file, **_):
        # The comparison's figures go into a buffer, those of a run into a file.
        file.write(empty) if hasattr(file, "write") else Path(file).write_text(empty)

    monkeypatch.setattr(Figure, "savefig", write)


ENTRIES = {
    "report": lambda run: report_main.main([str(run), "--out", str(run / "out")]),
    "load": sfl.load_run,
    "load_clients": lambda run: sfl.load_clients(run, [0, 1]),
    "export": lambda run: export_main.main([str(run), "--client=1"]),
}


def refusal(entry, run):
    """Returns what an entry point refuses with, or ''; any other error passes."""
    said, code = io.StringIO(), None
    try:
        with (
            contextlib.redirect_stderr(said),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            ENTRIES[entry](run)
    except SystemExit as end:
        code = end.code
    except ValueError as error:
        assert entry.startswith("load"), error
        return f"{error}\n"
    lines = [x for x in said.getvalue().splitlines(True) if not x.startswith("wrote")]
    assert (code == 2) == bool(lines) or entry.startswith("load"), lines
    return "".join(lines)


JSONS = ("[]", "{}", "null", "3", '"x"', "NaN", '{"a": 1}', '[{"a": 1}]')
ARRAYS = {
    "one axis": np.zeros(3),
    "texts": np.array([["x"]]),
    "objects": np.array([[{}]], object),
    "none": np.zeros((0, 4), np.int64),
    "scalar": np.array(3),
    "three axes": np.zeros((2, 2, 2), np.uint8),
    "nan": np.full((3, 4), np.nan),
}


def contents(file):
    """Yields what replaces a file: (name, bytes); None: nothing, '/': a folder."""
    whole = file.read_bytes()
    yield "removed", None
    yield "folder", "/"
    yield "empty", b""
    yield "half", whole[: len(whole) // 2]
    yield "last byte", whole[:-1]
    yield "random", random.Random(0).randbytes(max(64, len(whole)))
    yield from ((text, text.encode()) for text in JSONS)
    yield "deep", b"[" * 100_000
    if file.suffix == ".npy":
        for how, array in ARRAYS.items():
            np.save(stream := io.BytesIO(), array)
            yield how, stream.getvalue()


def changed(file):
    """Yields a JSON file with a value removed or of another kind: (name, bytes)."""
    lines = file.suffix == ".jsonl"
    text = file.read_text()
    documents = [*map(json.loads, text.splitlines())] if lines else [json.loads(text)]
    seen = set()
    for line, document in enumerate(documents):
        for path in paths(document):
            if (document.get("phase"), path) in seen:
                continue
            seen.add((document.get("phase"), path))
            for value in ("gone", None, "x", ["x"], {"a": 1}, -1, 10**400, np.inf):
                copy = json.loads(json.dumps(documents))
                parent = copy[line]
                for key in path[:-1]:
                    parent = parent[key]
                parent[path[-1]] = value
                if value == "gone":
                    del parent[path[-1]]
                yield (
                    f"{line} {path} {value}",
                    "\n".join(map(json.dumps, copy)).encode(),
                )


def paths(document, head=()):
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        yield (*head, key)
        if isinstance(value, dict | list):
            yield from paths(value, (*head, key))


def one_line_at_most(entry, source, file, content, run):
    """Checks that an entry point refuses a file in one line with its name or the run's.

    Returns:
      The line.
    """
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(source, run)
    (run / file).unlink()
    if content == "/":
        (run / file).mkdir()
    elif content is not None:
        (run / file).write_bytes(content)
    line = refusal(entry, run)
    assert line.count("\n") == bool(line), line
    clients = Path("clients") in file.parents  # which are named as a whole
    name = "clients" if clients else file.name
    assert not line or name in line or str(run) in line, line
    return line


REPORT = ("config.json", "metrics.jsonl", "summary.json", "partition.npy")
REPORT += ("masks/layers.json", "masks/server_0_000002.npy")
STATE = "checkpoint.npz", "clients/1/1.bin"
REFUSED = [
    *(("report", file) for file in REPORT),
    ("load", "config.json"),
    ("load", "metrics.jsonl"),
    ("load", "checkpoint.npz"),
    *(("load_clients", file) for file in ("config.json", *STATE)),
    *(("export", file) for file in ("config.json", *STATE)),
]


@pytest.mark.parametrize("make", [contents, changed])
@pytest.mark.parametrize("entry", list(ENTRIES))
def test_whatever_stands_in_a_file(finished, tmp_path, entry, make):
    assert all((finished / file).is_file() for _, file in REFUSED)
    seen = 0
    for path in sorted(p for p in finished.rglob("*") if p.is_file()):
        if make is changed and path.suffix not in (".json", ".jsonl"):
            continue
        changes = [*make(path)]
        for how, content in random.Random(0).sample(changes, min(len(changes), 60)):
            file = path.relative_to(finished)
            # Of lines the last one may be cut off, as a kill leaves it.
            wrong = ("random",) if file.suffix == ".jsonl" else ("random", "half", "[]")
            try:
                line = one_line_at_most(
                    entry, finished, file, content, tmp_path / "run"
                )
                assert line or how not in wrong or (entry, str(file)) not in REFUSED
            except BaseException as error:
                error.add_note(f"{file}: {how}")
                raise
            seen += 1
    assert seen > 100


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_not_written(tmp_path, value):
    with pytest.raises(ValueError, match=r"a\.json: .*not JSON compliant") as error:
        files.write_json(tmp_path / "a.json", {"b": [1.0, value]})
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())
    at = Snapshot(0, 1, placement.State({}, (), np.ones(1)), hours=value)
    with pytest.raises(OSError, match="checkpoint.npz could not be .*compliant"):
        checkpoint.save(tmp_path, at, {}, {})
    assert checkpoint.read(tmp_path) is None


@pytest.mark.parametrize("content", ["[]", '{"stages": [3]}', "{"])
def test_a_finished_run_whose_summary_is_damaged_says_so(finished, tmp_path, content):
    shutil.copytree(finished, run := tmp_path / "run")
    (run / "report.html").touch()
    (run / "summary.json").write_text(content)
    config = run_folder.read_config(run)
    with pytest.raises(ValueError, match=r"summary\.json") as caught:
        experiment.run(config, run, resume=True, progress=False)
    assert "\n" not in str(caught.value)
