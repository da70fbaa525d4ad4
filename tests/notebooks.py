"""Running of the notebooks of the docs; ``python -m tests.notebooks`` runs them and keeps what they show."""

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def run(path, folder):
    """The notebook as it is after a run in a new kernel and in this folder."""
    book = nbformat.read(path, as_version=4)
    NotebookClient(book, timeout=600, kernel_name="python3", record_timing=False).execute(cwd=str(folder))
    for cell in code_cells(book):
        cell.outputs = [output for output in cell.outputs if not _is_progress(output)]
    for key in ("widgets", "language_info"):  # differ from machine to machine
        book.metadata.pop(key, None)
    return book


def code_cells(book):
    return [cell for cell in book.cells if cell.cell_type == "code"]


def _is_progress(output):
    """Bars of progress, which are empty once they are done."""
    data = output.get("data", {})
    return "application/vnd.jupyter.widget-view+json" in data or (not data.get("text/plain", "-") and len(data) == 2)


if __name__ == "__main__":
    for path in [Path(name) for name in sys.argv[1:]] or NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(run(path, folder), path)
        print(f"{path}: {path.stat().st_size} bytes")
