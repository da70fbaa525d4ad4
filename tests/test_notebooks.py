"""The notebooks of the docs run from a clean state, and are kept with what they show."""

import re

import nbformat
import pytest

from tests.notebooks import NOTEBOOKS, code_cells, run


@pytest.mark.filterwarnings("default")  # zmq and jupyter_client are not ours
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_in_an_empty_folder_and_says_nothing_unasked(path, tmp_path):
    for cell in code_cells(run(path, tmp_path)):
        spoken = ["".join(output.text) for output in cell.outputs if output.get("name") == "stderr"]
        assert not spoken, cell.source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_with_its_outputs(path):
    cells = code_cells(nbformat.read(path, as_version=4))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    shown = [output for cell in cells for output in cell.outputs]
    assert not [output for output in shown if output.output_type == "error"]
    assert any("text/html" in output.get("data", {}) for output in shown)


def test_all_notebooks_together_are_small():
    assert len(NOTEBOOKS) == 4
    assert sum(path.stat().st_size for path in NOTEBOOKS) < 1_000_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_lead_somewhere(path):
    text = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown")
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    assert targets
    assert not [target for target in targets if not (path.parent / target).exists()]
