"""One made-up run and its report, shared by all tests of this folder."""

from pathlib import Path

import pytest
import torch

from lightning_calib.calibrators import load_calibrator, save_calibrator
from lightning_calib.kit.checksums import note_checksums
from lightning_calib.outputs.store import OutputStore
from lightning_calib.report.build import build_report
from tests.experiment.synthetic import write_outputs, write_results


@pytest.fixture(scope="session")
def store(tmp_path_factory) -> OutputStore:
    return write_outputs(tmp_path_factory.mktemp("run") / "outputs", cases=12)


@pytest.fixture(scope="session")
def calibration(store) -> Path:
    """All pipelines of the paper, two repeats; one pipeline failed in one of them, another in both."""
    fail = ((1, "ms_c(z)"), (0, "cdc(p)"), (1, "cdc(p)"))
    folder = write_results(store.path.parent / "calibration", store, repeats=2, fail=fail)
    move_temperatures(folder / "repeats" / "0" / "lts_ti-z" / "calibrator.safetensors")
    return folder


def move_temperatures(path: Path) -> None:
    """Give a local calibrator, which the made-up run leaves at the identity, temperatures to show."""
    calibrator = load_calibrator(path)
    with torch.no_grad():
        calibrator.convolutions.weight.add_(0.02)
    save_calibrator(path, calibrator)
    note_checksums(path.parent, [path.name])


@pytest.fixture(scope="session")
def report(store, calibration) -> Path:
    return build_report(calibration, store.path, store.path.parent / "report")


@pytest.fixture(scope="session")
def page(report) -> str:
    return report.read_text(encoding="utf-8")
