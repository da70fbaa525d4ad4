"""What is released: versions that agree, a small and complete wheel, a site that asks no other host."""

import csv
import io
import re
import runpy
import tomllib
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from mkdocs.exceptions import PluginError

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


@pytest.fixture(scope="module")
def hooks():
    return runpy.run_path(str(ROOT / "docs" / "hooks.py"))


def test_tables_of_results_become_csv(hooks):
    table = "| a | b \\| c |\n|:--|--:|\n| `ts(p)` | **1.0** [0.9, 1.1] |\n"
    rows = list(csv.reader(io.StringIO(hooks["as_csv"](table))))
    assert rows == [["a", "b | c"], ["ts(p)", "1.0 [0.9, 1.1]"]]


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ('<script src="https://elsewhere/a.js"></script>', True),
        ('<link rel="stylesheet" href=//elsewhere/a.css>', True),
        ("@font-face { src: url(https://elsewhere/a.woff) }", True),
        ("<a href='https://elsewhere'>read</a> <img src='images/a.png'>", False),
        ('<link rel="stylesheet" href="../assets/a.css">', False),
    ],
)
def test_a_site_that_asks_other_hosts_is_refused(hooks, tmp_path, text, asks):
    (tmp_path / "index.html").write_text(text)
    with pytest.raises(PluginError, match="elsewhere") if asks else nullcontext():
        hooks["on_post_build"](SimpleNamespace(site_dir=str(tmp_path)))


def test_the_pictures_of_invariance_show_what_the_page_says():
    space = runpy.run_path(str(ROOT / "docs" / "figures" / "invariance.py"))
    calibrators = (space["vector_scaling"](), space["temperature"](1.8))
    moved = space["LOGITS"] + torch.tensor([[-6.0], [0.0], [6.0]])
    uneven, even = (space["probabilities"](calibrator, moved)[:, 0].tolist() for calibrator in calibrators)
    assert [round(uneven[0], 2), round(uneven[-1], 2)] == [0.11, 0.98]  # as the page says
    assert even == pytest.approx([even[0]] * 3, abs=1e-6)
