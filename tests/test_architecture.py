"""Imports point one way (docs/architecture.md)."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "lightning_calib"

# What each part may import of the others, itself aside.
ALLOWED = {"kit": set(), "functional": set()}
ALLOWED["decisions"] = {"kit", "functional"}
ALLOWED["metrics"] = ALLOWED["calibrators"] = ALLOWED["segmenters"] = ALLOWED["datasets"] = {"kit", "functional"}
ALLOWED["executors"] = {"kit"}
ALLOWED["outputs"] = ALLOWED["datasets"] | {"datasets"}
ALLOWED["solvers"] = {"kit", "functional", "metrics", "calibrators"}
ALLOWED["tasks"] = ALLOWED["solvers"] | {"solvers", "datasets", "outputs", "segmenters", "decisions"}
ALLOWED["callbacks"] = ALLOWED["tasks"] | {"tasks"}
ALLOWED["experiment"] = ALLOWED["callbacks"] | {"callbacks", "executors"}
ALLOWED["report"] = ALLOWED["experiment"] | {"experiment"}
ALLOWED["studies"] = ALLOWED["report"] | {"report"}  # the report finds studies by their registry
ALLOWED["deployment"] = ALLOWED["studies"] | {"studies"}
ALLOWED["cli"] = ALLOWED["deployment"] | {"deployment"}

LIGHTNING_FREE = ["functional", "calibrators", "metrics", "solvers", "decisions"]


def imports_of(path: Path) -> list[str]:
    """Dotted names of everything that a file imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; write the full name"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


@pytest.mark.parametrize("part", ALLOWED)
def test_imports_point_one_way(part):
    for path in (PACKAGE / part).rglob("*.py"):
        for name in imports_of(path):
            top, _, rest = name.partition(".")
            if top == "lightning_calib" and (target := rest.split(".")[0]) in ALLOWED:
                assert target in ALLOWED[part] | {part}, f"{path} imports {name}"


@pytest.mark.parametrize("part", LIGHTNING_FREE)
def test_the_mathematics_works_without_lightning(part):
    for path in (PACKAGE / part).rglob("*.py"):
        for name in imports_of(path):
            top = name.split(".")[0]
            assert top not in {"pytorch_lightning", "lightning"}, f"{path} imports {name}"


def test_every_folder_is_ruled():
    folders = {path.parent.relative_to(PACKAGE).parts[0] for path in PACKAGE.glob("*/**/*.py")}
    assert folders <= set(ALLOWED), f"no import rule for {folders - set(ALLOWED)}"


def test_one_file_imports_albumentations():
    users = [
        path for path in PACKAGE.rglob("*.py") if any(n.split(".")[0] == "albumentations" for n in imports_of(path))
    ]
    assert len(users) <= 1, users
