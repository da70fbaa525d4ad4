"""The Python in the README and the docs runs as it stands."""

import re
from pathlib import Path

import pytest

from lightning_calib.calibrators import CALIBRATORS
from lightning_calib.kit import registry
from lightning_calib.metrics import SCORES
from lightning_calib.report.studies import STUDIES

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def snippets(page):
    """The programs of a page: those of a quick start are one program."""
    found = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    return ["\n".join(found)] if found and page.parent.name == "start" else found


SNIPPETS = [
    pytest.param(code, id=f"{page.stem}-{number}")
    for page in PAGES
    if page.stem != "extending"  # one program: tests/test_extending.py
    for number, code in enumerate(snippets(page))
]


@pytest.mark.parametrize("code", SNIPPETS)
def test_snippets_run(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_MODULES", dict(registry._MODULES))  # what a snippet registers is gone after it
    for each in (CALIBRATORS, SCORES, STUDIES):
        monkeypatch.setattr(each, "registered", dict(each.registered))
    exec(compile(code, "snippet", "exec"), {"__name__": "snippet"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", text) + re.findall(r'src="([^"]+)"', text)
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing
