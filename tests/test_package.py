"""What is released: versions that agree, a small and complete wheel, a site that asks no other host."""

import re
import tomllib
from pathlib import Path

import pytest
import torch
import yaml

import lightning_calib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_versions_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert PROJECT["project"]["version"] == lightning_calib.__version__ == citation["version"]
    assert PROJECT["project"]["license"] == citation["license"]


def test_every_python_that_is_named_is_tested():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    named = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["project"]["classifiers"]))
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == named == ["3.11", "3.12", "3.13"]


@pytest.mark.parametrize("name", ["wrong", "wish"])
def test_issue_forms_ask_for_something(name):
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text(encoding="utf-8"))
    ids = [part["id"] for part in form["body"]]
    assert len(ids) == len(set(ids))
    assert any(part.get("validations", {}).get("required") for part in form["body"])


def test_every_page_of_the_docs_is_on_the_site():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert pages == set(re.findall(r"[\w/-]+\.md", text.partition("nav:")[2]))


def test_the_pictures_of_invariance_show_what_the_page_says():
    script = ROOT / "docs" / "figures" / "invariance.py"
    space = {"__name__": "drawn", "__file__": str(script)}
    exec(compile(script.read_text(encoding="utf-8"), script, "exec"), space)
    calibrators = (space["vector_scaling"](), space["temperature"](1.8))
    moved = space["LOGITS"] + torch.tensor([[-6.0], [0.0], [6.0]])
    uneven, even = (space["probabilities"](calibrator, moved)[:, 0].tolist() for calibrator in calibrators)
    assert [round(uneven[0], 2), round(uneven[-1], 2)] == [0.11, 0.98]  # as the page says
    assert even == pytest.approx([even[0]] * 3, abs=1e-6)
