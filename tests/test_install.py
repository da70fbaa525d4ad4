"""An installed wheel has all that the demo needs."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"
SMALL = ["--members", "2", "--repeats", "1", "--trials", "1", "--lts_epochs", "1"]


def run(*command, cwd, **variables):
    """Output of a command outside the checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built(kind, source, target):
    """Build a source distribution or a wheel."""
    target.mkdir(exist_ok=True)
    return target / run(sys.executable, "-c", BUILD, f"build_{kind}", target, cwd=source).split()[-1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Folder of the programs of a virtual environment that has the wheel of the source distribution."""
    folder = tmp_path_factory.mktemp("install")
    source = folder / "source"
    shutil.copytree(ROOT / "lightning_calib", source / "lightning_calib", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    archive = built("sdist", source, folder / "dist")
    shutil.unpack_archive(archive, folder)
    wheel = built("wheel", folder / archive.name.removesuffix(".tar.gz"), folder / "dist")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    # Dependencies come from here; a path in a .pth file comes last and brings no editable installation with it.
    (Path(site) / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    found = run(python, "-c", "import lightning_calib; print(lightning_calib.__file__)", cwd=folder).strip()
    assert Path(found).is_relative_to(site)
    return python.parent


@pytest.mark.slow
def test_the_demo_of_an_installed_wheel_runs_to_its_end(installed, tmp_path):
    shown = run(installed / "lightning-calib", "demo", *SMALL, cwd=tmp_path, OMP_NUM_THREADS="1")
    assert "all of it took" in shown
    assert (tmp_path / "runs" / "demo" / "report" / "index.html").is_file()


@pytest.mark.slow
def test_the_wheel_is_complete_and_small(installed):
    (wheel,) = (installed.parents[1] / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    here = (
        path for path in (ROOT / "lightning_calib").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )
    assert held == {path.relative_to(ROOT).as_posix() for path in here}
    assert wheel.stat().st_size < 1_500_000


@pytest.mark.slow
def test_configs_are_found_by_name(installed, tmp_path):
    line = ["train", "fit", "--config", "configs/camvid.yaml", "--print_config"]
    assert "lightning_calib.datasets.camvid.CamVid" in run(installed / "lightning-calib", *line, cwd=tmp_path)


def make_says(path, *arguments):
    """What ``make`` would do to begin with, where only the programs of a folder are found."""
    line = ["make", "--dry-run", "--always-make", "demo", "VENV=none", *arguments]
    done = subprocess.run(line, cwd=ROOT, env={"PATH": str(path)}, capture_output=True, text=True, check=True)
    return done.stdout


def test_make_finds_a_python_that_fits(tmp_path):
    tools = {name: shutil.which(name) for name in ("make", "sh", "grep", "sed")}
    if not all(tools.values()):
        pytest.skip("no make on this machine")
    for name, tool in tools.items():
        (tmp_path / name).symlink_to(tool)
    assert 'test -n ""' in make_says(tmp_path)  # none: said before anything is installed
    (tmp_path / "python3").symlink_to(sys.executable)
    assert "|| python3 -m venv none" in make_says(tmp_path)
    (tmp_path / "python3.13").symlink_to(sys.executable)
    (tmp_path / "python3.12").write_text("#!/bin/sh\nexit 1\n")  # is there, but broken
    (tmp_path / "python3.12").chmod(0o755)
    assert "|| python3.13 -m venv none" in make_says(tmp_path)
    assert "|| other -m venv none" in make_says(tmp_path, "PYTHON=other")
