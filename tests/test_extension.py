"""A package outside ours brings a calibrator, a score, a study and a tracker; a run uses them all, to the report."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_calib.experiment.results import Results
from tests.experiment.synthetic import write_outputs

ROOT = Path(__file__).parents[1]

PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "stranger"
version = "1.0"

[tool.setuptools]
py-modules = ["stranger"]

[project.entry-points."lightning_calib.calibrators"]
half = "stranger:Half"

[project.entry-points."lightning_calib.scores"]
sureness = "stranger:SURENESS"

[project.entry-points."lightning_calib.studies"]
census = "stranger:Census"

[project.entry-points."lightning_calib.trackers"]
diary = "stranger:open_diary"
"""

MODULE = '''
"""Things that lightning_calib has never heard of."""

import json

import torch
from pytorch_lightning.loggers.logger import Logger

from lightning_calib import Calibrator, Score, Study
from lightning_calib.report.section import Section


class Half(Calibrator):
    """Raises probabilities to a power."""

    name = "half"
    description = "probabilities to some power"
    preserves = "argmax"

    def __init__(self, num_classes, spatial_dims=2):
        super().__init__(num_classes, spatial_dims)
        self.raw = torch.nn.Parameter(torch.zeros(()))

    def calibrate(self, logits):
        return (self.raw.exp() * logits).log_softmax(1)


def sureness(statistics, background):
    return statistics.bins.confidence.sum(-1) / statistics.voxels


SURENESS = Score(
    "sureness",
    "Sureness",
    "mean confidence",
    "How sure the model is on average.",
    None,
    headline=True,
    arithmetic=sureness,
)


class Diary(Logger):
    def __init__(self, path):
        super().__init__()
        self.path = path

    name = "diary"
    version = "1"

    def log_metrics(self, metrics, step=None):
        with self.path.open("a") as file:
            file.write(json.dumps(metrics) + chr(10))

    def log_hyperparams(self, params, *args, **kwargs):
        self.log_metrics({"settings": len(params)})


def open_diary(tracked):
    return Diary(tracked.folder / "diary.jsonl")
'''

STUDY = '''

class Census(Study):
    """Counts pipelines."""

    name, title = "census", "Census of pipelines"

    def run(self, letters: int = 3) -> dict:
        """Count the pipelines of a run.

        Args:
            letters: how many letters to keep of each name.
        """
        return self.write({"names": [name[:letters] for name in self.results.pipelines]})

    def tell(self, facts):
        return [f"{len(facts['names'])} pipelines"]

    def section(self, inputs, facts):
        return Section(self.key, self.title, lead="They are called " + " and ".join(facts["names"]))
'''


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The package in a folder of its own, which only these tests have on their path."""
    source, place = tmp_path_factory.mktemp("stranger"), tmp_path_factory.mktemp("site")
    (source / "pyproject.toml").write_text(PROJECT)
    (source / "stranger.py").write_text(MODULE + STUDY)
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(place), str(source)], check=True)
    return place


def calibrate(installed, *arguments):
    """The command in a process that finds the package."""
    environment = os.environ | {"PYTHONPATH": f"{installed}{os.pathsep}{ROOT}"}
    command = [sys.executable, str(ROOT / "calibrate.py"), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def run(installed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    write_outputs(folder / "outputs", cases=12)
    settings = ["--outputs", folder / "outputs", "--cal", 4, "--val", 3, "--repeats", 1, "--trials", 2]
    pipelines = "identity(p),half(p),stranger.Half(z)"
    text = calibrate(installed, "run", *settings, "--pipelines", pipelines, "--workers", 2, "--logger", "diary")
    calibrate(installed, "study", "census", "--calibration", folder / "calibration", "--letters", 5, "--workers", 2)
    return folder, text


def test_the_calibrator_was_fitted_in_a_worker(run):
    folder, text = run
    assert (folder / "calibration" / "repeats" / "0" / "half-p" / "calibrator.safetensors").is_file()
    assert (folder / "calibration" / "repeats" / "0" / "stranger.Half-z" / "fit.json").is_file()
    assert "half(p)" in text
    assert "stranger.Half(z)" in text


def test_the_score_is_in_table_results_and_terminal(run):
    folder, text = run
    with (folder / "calibration" / "cases.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert all(0 < float(row["sureness"]) <= 1 for row in rows)
    assert "Sureness" in text
    summary = json.loads((folder / "calibration" / "summary.json").read_text())
    assert "sureness" in summary["pipelines"]["half(p)"]["metrics"]
    with pytest.raises(ValueError, match=r"settings\.json: unknown calibrator 'half'.*install or register"):
        Results(folder)  # the package is not in this environment


def test_the_tracker_heard_of_fits_and_scores(run):
    folder, _ = run
    diary = (folder / "tracking" / "diary" / "diary.jsonl").read_text()
    assert "fit/half-p/0/loss" in diary
    assert "test/half-p/0/sureness" in diary


def test_the_report_shows_them_all(run):
    folder, _ = run
    page = (folder / "report" / "index.html").read_text(encoding="utf-8")
    assert "half(p)" in page
    assert "robabilities to some power" in page
    assert "How sure the model is on average." in page
    assert "Census of pipelines" in page
    assert "They are called ident and half( and stran" in page
