"""The notebooks run from top to bottom in a small setting, and are complete."""

import os
from pathlib import Path

import pytest

REASON = "needs the extra [test]"
nbformat = pytest.importorskip("nbformat", reason=REASON)

ROOT = Path(__file__).parents[2]
PRINTED = {  # of each notebook, what it has to print in the small setting
    "tutorial": (" laws hold for mine", "law 'fresh', cheat", "mine   all rounds"),
    "first_run": ("FedAvg, dense: ", "SPDST, density 0.1: ", "same result: True"),
    "own_method": ("law 'start'", "law 'padding'", "law 'fresh'", "top_k  "),
}


FOLDERS = ("examples", "docs")
FILES = {p.stem: p for folder in FOLDERS for p in (ROOT / folder).glob("*.ipynb")}


def read(name):
    """Reads a committed notebook, checked against the format's schema."""
    notebook = nbformat.read(FILES[name], as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    return notebook


def outputs(notebook):
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [output for cell in cells for output in cell.outputs]


def printed(notebook):
    streams = [o for o in outputs(notebook) if o.output_type == "stream"]
    return "".join(o.text for o in streams if o.name == "stdout")


@pytest.mark.parametrize("name", FILES)
def test_the_committed_outputs_are_those_of_one_run_without_an_error(name):
    notebook = read(name)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert "error" not in {output.output_type for output in outputs(notebook)}
    assert not any(o.get("name") == "stderr" for o in outputs(notebook))
    assert printed(notebook)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_it_runs_in_the_small_setting(name, tmp_path):
    nbclient = pytest.importorskip("nbclient", reason=REASON)
    pytest.importorskip("ipykernel", reason=REASON)
    notebook = read(name)
    client = nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    )
    # Compilation takes nearly all the time, so turn off optimisation.
    env = os.environ | {
        "SPARSEFL_SMALL": "1",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "PYTHONPATH": str(ROOT),
    }
    client.execute(env=env)  # raises the error of a cell
    text = printed(notebook)
    assert [line for line in PRINTED[name] if line not in text] == []
