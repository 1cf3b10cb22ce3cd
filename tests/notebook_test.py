"""The notebook runs from top to bottom in a small setting, and is complete."""

import os
from pathlib import Path

import pytest

REASON = "needs the extra [test]"
nbformat = pytest.importorskip("nbformat", reason=REASON)

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "docs" / "notebooks" / "quickstart.ipynb"


@pytest.fixture
def notebook():
    """Reads the committed notebook, checked against the format's schema."""
    read = nbformat.read(NOTEBOOK, as_version=nbformat.NO_CONVERT)
    nbformat.validate(read)
    return read


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_the_committed_outputs_are_those_of_one_run_without_an_error(notebook):
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert {output.output_type for output in outputs} == {"stream", "display_data"}
    assert {o.name for o in outputs if o.output_type == "stream"} == {"stdout"}
    pictures = [o for o in outputs if "image/png" in o.get("data", {})]
    assert len(pictures) == 2 and NOTEBOOK.stat().st_size < 150_000


def test_it_runs_in_the_small_setting(notebook, tmp_path):
    nbclient = pytest.importorskip("nbclient", reason=REASON)
    pytest.importorskip("ipykernel", reason=REASON)
    client = nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    )
    # Compilation takes nearly all the time, so turn off optimisation.
    env = os.environ | {
        "SPARSEFL_SMALL": "1",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "PYTHONPATH": str(ROOT),
    }
    client.execute(env=env)  # raises the error of a cell
    text = "".join(
        output.text
        for cell in code_cells(notebook)
        for output in cell.outputs
        if output.output_type == "stream" and output.name == "stdout"
    )
    assert len(text.splitlines()[0].split(",")) == 4  # clients: it was the small one
    for name in ("FedAvg, dense", "SPDST, density 0.1", "top-k up, density 0.02"):
        assert f"{name}: " in text
